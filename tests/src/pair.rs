//! Two metadata servers on one PostgreSQL.

use std::path::PathBuf;

use crate::postgres::Postgres;
use crate::{Daemon, Signal, System, command, run, text};

/// The servers, devices, and the database.
pub struct ServerPair {
    /// The first server, and the devices.
    pub system: System,
    second: Option<Daemon>,
    /// Address of the second server, also while it is down.
    pub second_address: String,
    /// Name of the database.
    pub database: String,
    /// The database, dropped after its clients.
    pub postgres: Postgres,
}

impl ServerPair {
    /// Starts all of them, with this many devices.
    #[track_caller]
    #[must_use]
    pub fn start(osds: usize) -> Self {
        let postgres = Postgres::start();
        let database = postgres.database();
        let system = System::start_with_init(osds, &["--meta", &postgres.url(&database)]);
        let mut pair =
            Self { system, second: None, second_address: "127.0.0.1:0".into(), database, postgres };
        let (from, to) = (pair.system.path("mds"), pair.system.path("mds2"));
        run(&["mds", "join", "--data", text(&to), "--from", text(&from)]).ok();
        pair.start_second();
        pair
    }

    /// Starts the second server, on its old port if it had one.
    #[track_caller]
    pub fn start_second(&mut self) {
        let data = self.system.path("mds2");
        let listen = &self.second_address;
        let daemon =
            Daemon::start(command(&["--json", "mds", "serve", "--data", text(&data), "--listen", listen]));
        daemon.field("address").clone_into(&mut self.second_address);
        self.second = Some(daemon);
    }

    /// Kills the second server.
    pub fn kill_second(&mut self) {
        if let Some(mut daemon) = self.second.take() {
            daemon.end(Signal::Kill);
        }
    }

    /// Returns the path of the administrator's password.
    #[must_use]
    pub fn admin_secret(&self) -> PathBuf {
        self.system.path("mds").join("admin-secret")
    }

    /// Returns both addresses, in the format for clients.
    #[must_use]
    pub fn addresses(&self) -> String {
        format!("{},{}", self.system.mds().field("address"), self.second_address)
    }
}
