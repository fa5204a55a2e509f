//! The metadata server's shell: TLS, sessions, the device reaper.
