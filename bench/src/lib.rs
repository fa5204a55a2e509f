//! Workloads and figures.
