//! What is asked on a new connection, before anything else: whether the server may be used, and which process of it answers.

use redis::{Cmd, Value, aio::MultiplexedConnection};

use super::{
    super::{
        failure::{self, Failure},
        known_nodes::{self, KnownNodes, Trust},
        role::{self, Role},
        server_process::{self, Process},
        slots::{self, Layout},
    },
    Dial,
};
use crate::{
    error::{Error, ErrorKind},
    store::Fault,
};

impl Dial {
    /// Sees that the server may be used, and asks which process of it this is.
    pub(in crate::store::redis) async fn greet(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Process, Error> {
        // All questions go out together.
        let (mut other, mut third) = (connection.clone(), connection.clone());
        let asked = (self.ask_process(&mut other), self.ask_history(&mut third));
        let (admitted, process, ()) = tokio::join!(self.admit(connection), asked.0, asked.1);
        admitted?;
        process
    }

    /// In a cluster nobody else tells of a master that loses its place between two looks and gets it back.
    async fn ask_history(&self, connection: &mut MultiplexedConnection) {
        if self.known_nodes.is_none() || self.baseline.0.get().is_some() {
            return;
        }
        let answer = connection.send_packed_command(&role::question(role::QUESTIONS[1])).await;
        if let Some(answer) = answer.ok().and_then(|value| failure::reply(value).ok())
            && role::of(&answer) != Some(Role::Replica)
            && let Some(history) = role::history(&answer)
        {
            let _ = self.baseline.0.set(history.id);
        }
    }

    /// The history that a master's data had when it was first connected to, where it is one of a cluster and may be asked.
    pub(in crate::store::redis) fn baseline(&self) -> Option<&String> {
        self.baseline.0.get()
    }

    async fn admit(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        if self.master_only {
            self.greet_master(connection).await?;
        } else {
            self.greet_server(connection).await?;
        }
        if let Some(known_nodes) = self.known_nodes.as_ref().filter(|known_nodes| !known_nodes.is_empty()) {
            self.greet_kin(connection, known_nodes).await?;
        }
        self.introduce(connection).await
    }

    /// `None` where the account may not ask. The local engine loses nothing that it has confirmed when it is started anew, so all of its
    /// processes count as one.
    async fn ask_process(&self, connection: &mut MultiplexedConnection) -> Result<Process, Error> {
        if self.is_local() {
            return Ok(Some("".into()));
        }
        match connection.send_packed_command(&role::question(&server_process::QUESTION)).await {
            Ok(value) => Ok(failure::reply(value).ok().as_ref().and_then(server_process::process)),
            Err(error) if error.code().is_some() => Ok(None),
            Err(error) => Err(self.ended(error.category())),
        }
    }

    async fn greet_server(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        // Logging in with no password succeeds on servers that want one; the first command would then fail, so ask now.
        let mut cmd = Cmd::new();
        match &self.local_engine {
            Some(local_engine) => {
                for part in local_engine.hello() {
                    cmd.arg(part);
                }
            }
            None => {
                cmd.arg("PING");
            }
        }
        let answer = connection.send_packed_command(&cmd).await;
        // A server that cannot save refuses PING as it refuses writes, and still answers what only reads.
        let refused = |code: &str, detail: &str| match code {
            "MISCONF" if self.local_engine.is_none() => Ok(()),
            _ => Err(self.greeting_error(code, detail)),
        };
        match (answer, &self.local_engine) {
            (Ok(Value::ServerError(error)), _) => refused(error.code(), error.details().unwrap_or("")),
            (Ok(answer), Some(local_engine)) => local_engine.check(&answer),
            (Ok(_), None) => Ok(()),
            (Err(error), _) => match error.code() {
                Some(code) => refused(code, error.detail().unwrap_or("")),
                None => Err(self.ended(error.category())),
            },
        }
        .or_else(|error| {
            // An account without the right to PING may still run scripts.
            if self.local_engine.is_none() && error.kind() == ErrorKind::Permission {
                Ok(())
            } else {
                Err(error)
            }
        })
    }

    async fn introduce(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        if let Some(name) = &self.client_name {
            let mut cmd = Cmd::new();
            cmd.arg("CLIENT").arg("SETNAME").arg(name);
            // A name is for people who look; an account that may not have one works without.
            match connection.send_packed_command(&cmd).await {
                Ok(Value::ServerError(_)) => {
                    tracing::debug!(server = %self.server, "CLIENT SETNAME was refused")
                }
                Ok(_) => {}
                Err(error) if error.code().is_some() => {
                    tracing::debug!(server = %self.server, "CLIENT SETNAME was refused")
                }
                Err(error) => return Err(self.unreachable(error.category())),
            }
        }
        Ok(())
    }

    /// Asks for the role in place of a sign of life. Where an account may not ask, refused writes are the only proof.
    async fn greet_master(&self, connection: &mut MultiplexedConnection) -> Result<(), Error> {
        for question in role::QUESTIONS {
            let answer = match connection.send_packed_command(&role::question(question)).await {
                Ok(value) => failure::reply(value),
                Err(error) => match error.code() {
                    Some(code) => Err(Failure::refused(code, error.detail().unwrap_or(""))),
                    None => return Err(self.ended(error.category())),
                },
            };
            let error = match answer {
                Ok(answer) if role::of(&answer) == Some(Role::Replica) => {
                    let text = format!("{} is a replica at present", self.server);
                    return Err(Error::new(ErrorKind::ReadOnly, text));
                }
                Ok(_) => return Ok(()),
                Err(failure) => Fault::from(failure).into_error(),
            };
            if !matches!(error.kind(), ErrorKind::Permission | ErrorKind::Server) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Asks who is in its cluster. An account that may not ask is not protected from a server that has got another one's address.
    async fn greet_kin(
        &self,
        connection: &mut MultiplexedConnection,
        known_nodes: &KnownNodes,
    ) -> Result<(), Error> {
        let answer = match connection.send_packed_command(&slots::question()).await {
            Ok(value) => failure::reply(value),
            Err(error) => match error.code() {
                Some(code) => Err(Failure::refused(code, error.detail().unwrap_or(""))),
                None => return Err(self.ended(error.category())),
            },
        };
        let is_stranger = match answer {
            Ok(answer) => {
                Layout::read(&answer, self.addr()).is_none_or(|layout| !known_nodes.knows(&layout.ids))
            }
            Err(failure) if slots::may_not_ask(&failure) => false,
            Err(Failure::Refused { detail, .. }) if slots::says_it_is_no_cluster(&detail) => true,
            Err(failure) => return Err(Fault::from(failure).into_error()),
        };
        known_nodes.note(self.addr(), is_stranger);
        if is_stranger { Err(known_nodes::stranger(&self.server)) } else { Ok(()) }
    }

    /// What a connection that is about to be greeted may count on.
    pub(in crate::store::redis) fn trust(&self) -> Trust {
        Trust::of(self.known_nodes.as_ref())
    }

    /// Whether the server was found to be a stranger when it was last connected to.
    pub(in crate::store::redis) fn is_stranger(&self) -> bool {
        self.known_nodes.as_ref().is_some_and(|known_nodes| known_nodes.is_stranger(self.addr()))
    }

    fn greeting_error(&self, code: &str, detail: &str) -> Error {
        if self.local_engine.is_none() && detail.to_ascii_lowercase().starts_with("unknown command") {
            // A server that does not know PING has let us in all the same; told from others like a missing right.
            return Error::new(ErrorKind::Permission, "the server has no PING");
        }
        Fault::server_at(Some(&self.describe()), code, detail).into_error()
    }
}
