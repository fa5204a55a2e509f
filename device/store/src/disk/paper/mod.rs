//! Code that only reproduces a paper. Partitions of the default profile use nothing of it.

mod increments;
