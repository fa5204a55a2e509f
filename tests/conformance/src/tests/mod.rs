//! The tests, a file for each area.

pub(crate) mod attributes;
pub(crate) mod block;
pub(crate) mod capture;
pub(crate) mod cdbs;
pub(crate) mod chap;
pub(crate) mod collections;
pub(crate) mod data;
pub(crate) mod duplicates;
pub(crate) mod keys;
pub(crate) mod listing;
pub(crate) mod login;
pub(crate) mod maps;
pub(crate) mod master;
pub(crate) mod objects;
pub(crate) mod pages;
pub(crate) mod partitions;
pub(crate) mod perform;
pub(crate) mod rewrite;
pub(crate) mod scatter;
pub(crate) mod security;
pub(crate) mod session;
pub(crate) mod spc;
