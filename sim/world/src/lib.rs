//! Deterministic simulation of client, MDS and devices with faults from one seed.
