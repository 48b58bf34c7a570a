//! The sources of a crate as a tree of modules: what each defines, what each imports, and which paths each mentions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, ItemUse, UseTree};

/// A module that is not a test. Several modules share a file where they are written in line.
pub(crate) struct Module {
    /// Path from the root of the repository.
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    /// Names of the items that are written here.
    pub(crate) defined: BTreeSet<String>,
    /// Names that a `use` brings in, and the path that each stands for.
    pub(crate) imported: BTreeMap<String, Vec<Vec<String>>>,
    /// What `use …::*` brings in.
    pub(crate) globs: Vec<Vec<String>>,
    pub(crate) mentions: Vec<Mention>,
}

/// A path in the code: in a `use`, in an expression, or in the tokens of a macro.
pub(crate) struct Mention {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
    pub(crate) in_use: bool,
}

/// All modules of a crate; the first is its root.
pub(crate) struct Sources {
    pub(crate) modules: Vec<Module>,
}

impl Sources {
    /// Reads the crate whose root file is `root`, a path from `repository`.
    pub(crate) fn read(repository: &Path, root: &Path) -> Self {
        let mut sources = Self { modules: Vec::new() };
        let folder = root.parent().expect("a file is in a folder").to_owned();
        sources.file(repository, root, &folder, None);
        sources
    }

    /// `folder` is where the files of child modules are.
    fn file(&mut self, repository: &Path, file: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let text =
            fs::read_to_string(repository.join(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.module(repository, file, folder, parent, parsed.items)
    }

    fn module(
        &mut self,
        repository: &Path,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
        items: Vec<Item>,
    ) -> usize {
        let id = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            defined: BTreeSet::new(),
            imported: BTreeMap::new(),
            globs: Vec::new(),
            mentions: Vec::new(),
        });
        for item in items {
            if attributes(&item).iter().any(is_test) {
                continue;
            }
            let Item::Mod(child) = item else {
                let module = &mut self.modules[id];
                module.defined.extend(name(&item));
                module.scan(item.to_token_stream(), 0);
                continue;
            };
            let name = child.ident.to_string();
            let inside = folder.join(&name);
            let child = match child.content {
                Some((_, items)) => self.module(repository, file, &inside, Some(id), items),
                None if name == "tests" => continue,
                None => {
                    let flat = inside.with_extension("rs");
                    let file = if repository.join(&flat).exists() { flat } else { inside.join("mod.rs") };
                    self.file(repository, &file, &inside, Some(id))
                }
            };
            self.modules[id].children.insert(name, child);
        }
        id
    }
}

impl Module {
    /// Notes all paths in tokens. Tokens and not syntax, so that what is given to macros and what they hold is read, too. `inside` is how
    /// many modules that a macro writes are around them.
    fn scan(&mut self, tokens: TokenStream, inside: usize) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let before = at.checked_sub(1).map(|i| &tokens[i]);
            match &tokens[at] {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    at = self.attribute(&tokens, at);
                    continue;
                }
                TokenTree::Group(group) => {
                    let visibility = group.delimiter() == Delimiter::Parenthesis
                        && matches!(before, Some(TokenTree::Ident(word)) if word == "pub");
                    let written = group.delimiter() == Delimiter::Brace
                        && at >= 2
                        && matches!(&tokens[at - 2], TokenTree::Ident(word) if word == "mod");
                    if !visibility {
                        self.scan(group.stream(), inside + usize::from(written));
                    }
                }
                TokenTree::Ident(word) if word == "use" => {
                    let end = tokens[at..]
                        .iter()
                        .position(|t| is_punct(t, ';'))
                        .map_or(tokens.len(), |n| at + n + 1);
                    if let Ok(item) = syn::parse2::<ItemUse>(tokens[at..end].iter().cloned().collect()) {
                        if item.leading_colon.is_none() {
                            self.import(&item.tree, &mut Vec::new(), inside);
                        }
                        at = end;
                        continue;
                    }
                }
                TokenTree::Ident(_) => {
                    let (segments, end) = path(&tokens, at);
                    let own = segments[0] == "crate" || !belongs_to_what_is_before(&tokens[..at]);
                    if own {
                        let line = tokens[at].span().start().line;
                        let segments = from_outside(segments, inside);
                        self.mentions.push(Mention { segments, line, in_use: false });
                    }
                    at = end;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Skips an attribute, and with `#[cfg(test)]` what it is about. The index of the token after it.
    fn attribute(&mut self, tokens: &[TokenTree], at: usize) -> usize {
        let mut next = at + 1;
        if tokens.get(next).is_some_and(|t| is_punct(t, '!')) {
            next += 1;
        }
        let Some(TokenTree::Group(group)) = tokens.get(next) else {
            return next;
        };
        next += 1;
        if group.stream().to_string().replace(' ', "") != "cfg(test)" {
            return next;
        }
        while next < tokens.len() {
            let ends = match &tokens[next] {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                token => is_punct(token, ';') || is_punct(token, ','),
            };
            next += 1;
            if ends {
                break;
            }
        }
        next
    }

    fn import(&mut self, tree: &UseTree, before: &mut Vec<String>, inside: usize) {
        let mut leaf = |segments: Vec<String>, name: Option<String>, line: usize| {
            let segments = from_outside(segments, inside);
            match name {
                Some(name) => self.imported.entry(name).or_default().push(segments.clone()),
                None => self.globs.push(segments.clone()),
            }
            self.mentions.push(Mention { segments, line, in_use: true });
        };
        let joined = |last: &syn::Ident| {
            let mut all = before.clone();
            if last != "self" || all.is_empty() {
                all.push(last.to_string());
            }
            all
        };
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before, inside);
                before.pop();
            }
            UseTree::Name(name) => {
                let segments = joined(&name.ident);
                let last = segments.last().cloned();
                leaf(segments, last, name.ident.span().start().line);
            }
            UseTree::Rename(rename) => {
                leaf(
                    joined(&rename.ident),
                    Some(rename.rename.to_string()),
                    rename.ident.span().start().line,
                );
            }
            UseTree::Glob(glob) => leaf(before.clone(), None, glob.star_token.spans[0].start().line),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before, inside)),
        }
    }
}

/// Whether a word after these tokens is no path of its own: it follows `::` of another crate or of a type, the `.` of a value, the `$` of a
/// macro's argument, or the mark of a lifetime. What follows `..` is one.
fn belongs_to_what_is_before(tokens: &[TokenTree]) -> bool {
    let ends_with = |mark: char| tokens.last().is_some_and(|token| is_punct(token, mark));
    let twice =
        |mark: char| ends_with(mark) && tokens.iter().nth_back(1).is_some_and(|token| is_punct(token, mark));
    ends_with('\'') || ends_with('$') || twice(':') || (ends_with('.') && !twice('.'))
}

/// What a path in a module that a macro writes means outside of that module.
fn from_outside(segments: Vec<String>, inside: usize) -> Vec<String> {
    let up = segments.iter().take(inside).take_while(|segment| *segment == "super").count();
    if up == 0 {
        return segments;
    }
    std::iter::once("self".to_owned()).chain(segments.into_iter().skip(up)).collect()
}

fn path(tokens: &[TokenTree], start: usize) -> (Vec<String>, usize) {
    let mut segments = Vec::new();
    let mut at = start;
    while let Some(TokenTree::Ident(word)) = tokens.get(at) {
        segments.push(word.to_string());
        at += 1;
        let more = tokens.get(at..at + 3).is_some_and(|next| {
            is_punct(&next[0], ':') && is_punct(&next[1], ':') && matches!(next[2], TokenTree::Ident(_))
        });
        if !more {
            break;
        }
        at += 2;
    }
    (segments, at)
}

fn is_punct(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == mark)
}

fn is_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|p| p.is_ident("test"))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn name(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(i) => i.ident.to_string(),
        Item::Enum(i) => i.ident.to_string(),
        Item::Fn(i) => i.sig.ident.to_string(),
        Item::Macro(i) => i.ident.as_ref()?.to_string(),
        Item::Static(i) => i.ident.to_string(),
        Item::Struct(i) => i.ident.to_string(),
        Item::Trait(i) => i.ident.to_string(),
        Item::Type(i) => i.ident.to_string(),
        Item::Union(i) => i.ident.to_string(),
        _ => return None,
    })
}
