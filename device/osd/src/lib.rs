//! The OSD logical unit: command table, checks, attribute engine, handlers.
