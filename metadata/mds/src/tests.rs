//! Tests of the whole server without a socket.

mod accounts;
mod crash;
mod files;
mod logins;
mod model;
mod world;
