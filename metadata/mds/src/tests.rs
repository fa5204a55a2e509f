//! Tests of the whole server without a socket.
