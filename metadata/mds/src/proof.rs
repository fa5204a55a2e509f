//! Node proofs: a number of a node alone gives no access.
//!
//! Does: create and check proofs. A proof is the first 8 bytes of HMAC-SHA256 over user and node
//! number, under a key derived from the server's login keys. It shows that this server led the user
//! to the node through directories that the user may search.
//! Does not: grant rights to the node's content; owner, group and mode decide that at each request.
//! Truth: docs/standards/mds/nodes.md §5.8; docs/adr/0034-node-numbers-and-open-files.md.

use sealstone_crypto::{MacKey, RustCrypto};
use sealstone_mds_protocol::{ErrorCode, InodeId, NODE_PROOF_BYTES, Node, Response, Stat, UserName};
use sealstone_seal::{Hash, Provider, ct_eq};

use crate::access::Principal;
use crate::error::{MdsError, Result};
use crate::namespace::ROOT;

const LABEL: &[u8] = b"sealstone node proof v1";

/// The key of all node proofs.
pub(crate) struct ProofKey(MacKey);

impl ProofKey {
    pub(crate) fn new(login_keys: &[u8]) -> Self {
        let key = RustCrypto::tag(&RustCrypto::mac_key(Hash::Sha256, login_keys), &[LABEL]);
        Self(RustCrypto::mac_key(Hash::Sha256, key.as_bytes()))
    }

    pub(crate) fn prove(&self, user: &UserName, id: InodeId) -> [u8; NODE_PROOF_BYTES] {
        let name = user.as_str().as_bytes();
        let length = (name.len() as u16).to_be_bytes();
        let tag = RustCrypto::tag(&self.0, &[&length, name, &id.0.to_be_bytes()]);
        let mut proof = [0; NODE_PROOF_BYTES];
        proof.iter_mut().zip(tag.as_bytes()).for_each(|(to, from)| *to = *from);
        proof
    }

    /// Returns the number of a node if its proof is valid. A wrong proof gets the same answer as a
    /// number without a node.
    pub(crate) fn verify(&self, principal: &Principal, node: Node) -> Result<InodeId> {
        let stale = || MdsError::refused(ErrorCode::Stale, format!("node {}", node.inode.0));
        let proven = ct_eq(&self.prove(&principal.user, node.inode), &node.proof);
        if proven || node.inode == ROOT { Ok(node.inode) } else { Err(stale()) }
    }

    fn prove_stat(&self, principal: &Principal, stat: &mut Stat) {
        stat.proof = self.prove(&principal.user, stat.inode);
    }

    /// Adds the proofs to a response. A delegated file gets none, because it is for a program
    /// without a session.
    pub(crate) fn prove_all(&self, principal: &Principal, response: &mut Response) {
        match response {
            Response::Stat { stat } | Response::Made { stat, .. } | Response::Leased { stat, .. } => {
                self.prove_stat(principal, stat);
            }
            Response::LookedUp { stat: Some(stat), .. } => self.prove_stat(principal, stat),
            Response::Directory { entries, .. } | Response::Listed { entries, .. } => {
                // Entries of a directory that the user may not search have no stat: the user was
                // not led to them.
                entries
                    .iter_mut()
                    .flat_map(|entry| &mut entry.stat)
                    .for_each(|stat| self.prove_stat(principal, stat));
            }
            Response::Opened { file } => self.prove_stat(principal, &mut file.stat),
            Response::NodeOpened { node } => self.prove_stat(principal, &mut node.stat),
            Response::Renamed { moved, other } => {
                self.prove_stat(principal, moved);
                other.iter_mut().for_each(|other| self.prove_stat(principal, other));
            }
            _ => {}
        }
    }
}
