//! From a path in the code to the file that defines what it means, and the imports of all files that follow from that.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use crate::source::{Mention, Sources};

/// Where a path leads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// To a module itself: no import yet, because what is used of it is another path.
    Module(usize),
    /// To an item, by the module that holds it.
    Item(usize),
}

/// How one file comes to import another: the first line that does, and its path.
#[derive(Clone)]
pub(crate) struct Import {
    pub(crate) line: usize,
    pub(crate) path: String,
}

/// Which file imports which, and how the files lie in each other as modules.
pub(crate) struct Imports {
    pub(crate) edges: BTreeMap<PathBuf, BTreeMap<PathBuf, Import>>,
    /// The file of the parent module of each file, but the root's.
    pub(crate) parents: BTreeMap<PathBuf, PathBuf>,
    pub(crate) files: BTreeSet<PathBuf>,
}

impl Imports {
    pub(crate) fn of(sources: &Sources) -> Self {
        let mut imports = Self { edges: BTreeMap::new(), parents: BTreeMap::new(), files: BTreeSet::new() };
        for (id, module) in sources.modules.iter().enumerate() {
            imports.files.insert(module.file.clone());
            if let Some(parent) = module.parent.map(|parent| &sources.modules[parent])
                && parent.file != module.file
            {
                imports.parents.insert(module.file.clone(), parent.file.clone());
            }
            for mention in &module.mentions {
                for target in sources.meaning(id, mention) {
                    let Target::Item(at) = target else { continue };
                    let file = &sources.modules[at].file;
                    if *file == module.file {
                        continue;
                    }
                    let path = mention.segments.join("::");
                    let path = if mention.in_use { format!("use {path}") } else { path };
                    let import = Import { line: mention.line, path };
                    let all = imports.edges.entry(module.file.clone()).or_default();
                    let first = all.entry(file.clone()).or_insert_with(|| import.clone());
                    if import.line < first.line {
                        *first = import;
                    }
                }
            }
        }
        imports
    }

    pub(crate) fn between(&self, from: &PathBuf, to: &PathBuf) -> Option<&Import> {
        self.edges.get(from)?.get(to)
    }
}

impl Sources {
    /// What a path in module `at` means. A word alone has come in by a `use`, which counts there; but by `*` it has not been named.
    fn meaning(&self, at: usize, mention: &Mention) -> Vec<Target> {
        let segments: Vec<&str> = mention.segments.iter().map(String::as_str).collect();
        if segments.len() == 1 && !mention.in_use {
            let module = &self.modules[at];
            let word = &mention.segments[0];
            let named = module.defined.contains(word)
                || module.imported.contains_key(word)
                || module.children.contains_key(word);
            return if named { Vec::new() } else { self.through_globs(at, &segments, 0) };
        }
        self.resolve(at, &segments, 0)
    }

    /// The meaning of a path as written in module `at`; empty for another crate's.
    fn resolve(&self, at: usize, path: &[&str], depth: usize) -> Vec<Target> {
        match path {
            [] => Vec::new(),
            ["crate", rest @ ..] => self.walk(0, rest, depth),
            ["self" | "super", ..] => self.walk(at, path, depth),
            _ => self.find(at, path, depth),
        }
    }

    /// The meaning of a path in module `at`. What is not found there has been made by a macro, and counts as defined there.
    fn walk(&self, at: usize, path: &[&str], depth: usize) -> Vec<Target> {
        match path {
            [] => vec![Target::Module(at)],
            ["self", rest @ ..] => self.walk(at, rest, depth),
            ["super", rest @ ..] => {
                self.modules[at].parent.map_or(Vec::new(), |up| self.walk(up, rest, depth))
            }
            _ => {
                let found = self.find(at, path, depth);
                if found.is_empty() { vec![Target::Item(at)] } else { found }
            }
        }
    }

    /// As [`walk`](Self::walk), and empty where nothing is found. A re-export is followed to the file that defines the item,
    /// through any number of them; what it takes from another crate counts as defined where it is re-exported.
    fn find(&self, at: usize, path: &[&str], depth: usize) -> Vec<Target> {
        let (first, rest) = (path[0], &path[1..]);
        let module = &self.modules[at];
        if depth > 40 {
            return Vec::new();
        }
        let mut found = Vec::new();
        if let Some(&child) = module.children.get(first) {
            found.extend(self.walk(child, rest, depth + 1));
        }
        if module.defined.contains(first) && (rest.is_empty() || found.is_empty()) {
            found.push(Target::Item(at));
        } else if found.is_empty() {
            for import in module.imported.get(first).into_iter().flatten() {
                let whole: Vec<&str> =
                    import.iter().map(String::as_str).chain(rest.iter().copied()).collect();
                if whole[0] == first && import.len() == 1 {
                    continue;
                }
                let meaning = self.resolve(at, &whole, depth + 1);
                if meaning.is_empty() {
                    found.push(Target::Item(at));
                }
                found.extend(meaning);
            }
        }
        if found.is_empty() {
            found = self.through_globs(at, path, depth + 1);
        }
        found.sort();
        found.dedup();
        found
    }

    fn through_globs(&self, at: usize, path: &[&str], depth: usize) -> Vec<Target> {
        let mut found = Vec::new();
        for glob in &self.modules[at].globs {
            let glob: Vec<&str> = glob.iter().map(String::as_str).collect();
            for target in self.resolve(at, &glob, depth + 1) {
                if let Target::Module(module) = target
                    && module != at
                {
                    found.extend(self.find(module, path, depth + 1));
                }
            }
        }
        found
    }
}
