//! Rights as the rules that a server reads.

use std::fmt;

use super::Rights;

impl Rights {
    /// The rules, as they follow the name in `ACL SETUSER name …` and in a line `user name …` of a users file. They take away
    /// every other command, key and channel, and leave alone whether the account is on and its passwords.
    pub fn rules(&self) -> String {
        let mut rules = String::from("-@all");
        for command in self.commands() {
            rules += " +";
            rules += command;
        }
        rules += " resetkeys";
        for pattern in self.keys() {
            rules += " ~";
            rules += &pattern;
        }
        rules += " resetchannels";
        for pattern in self.channels() {
            rules += " &";
            rules += &pattern;
        }
        rules
    }
}

impl fmt::Display for Rights {
    /// The rules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rules())
    }
}
