//! Tests of the whole server without a socket.

mod accounts;
mod crash;
mod enrolment;
mod files;
mod groups;
mod logins;
mod model;
mod world;
