//! Tests of the whole server without a socket.

mod accounts;
mod attacks;
mod crash;
mod directory;
mod enrolment;
mod files;
mod grants;
mod groups;
mod keys;
mod logins;
mod lazy;
mod model;
mod paper;
mod seen;
mod world;
