//! Tests of the whole server without a socket.

mod accounts;
mod crash;
mod enrolment;
mod files;
mod groups;
mod keys;
mod logins;
mod model;
mod paper;
mod world;
