//! Certificate of a device, created with the device or at its first start.
//!
//! Contract: the key is written before the certificate, so that a certificate always has its key.
//! In a folder with only a key both are created again. A key that others can read is refused.

use std::path::Path;

use sealstone_channel::{ALPN_ISCSI, IdentityError, TOKEN_LABEL, TlsIdentity, TlsServer, device_name};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};

/// Certificate of the device, DER.
pub const CERTIFICATE_FILE: &str = "certificate.der";
/// Its key, PKCS #8, mode 0600.
pub const KEY_FILE: &str = "certificate-key.der";
/// The certificate of the authority that signed it, DER; only if one did.
const AUTHORITY_FILE: &str = "authority.der";

/// Returns the identity in the folder; creates it if there is none.
pub(crate) fn open(data: &Path, system_id: &[u8; 20]) -> Outcome<TlsIdentity> {
    let [certificate, key, authority] =
        [CERTIFICATE_FILE, KEY_FILE, AUTHORITY_FILE].map(|name| data.join(name));
    if !certificate.exists() {
        let created =
            TlsIdentity::self_signed(&device_name(system_id)).map_err(|error| unusable(&error, data))?;
        write(data, &created)?;
        return Ok(created);
    }
    let mut chain = vec![secret_file::read_public(&certificate)?];
    if authority.exists() {
        chain.push(secret_file::read_public(&authority)?);
    }
    let key = secret_file::read_bytes(&key).map_err(|failure| match failure.kind {
        FailureKind::NotFound => failure.hint("restore the key, or remove the certificate too"),
        _ => failure,
    })?;
    Ok(TlsIdentity { chain, key })
}

/// Writes an identity into a folder.
pub fn write(data: &Path, identity: &TlsIdentity) -> Outcome {
    secret_file::write(&data.join(KEY_FILE), &identity.key)?;
    if let Some(authority) = identity.chain.get(1) {
        secret_file::write(&data.join(AUTHORITY_FILE), authority)?;
    }
    let own = identity.chain.first().ok_or_else(|| unusable(&IdentityError::Empty, data))?;
    secret_file::write(&data.join(CERTIFICATE_FILE), own)
}

/// Returns the TLS configuration of the listener of a device.
pub(crate) fn server(identity: &TlsIdentity, data: &Path) -> Outcome<TlsServer> {
    TlsServer::new(identity, ALPN_ISCSI, TOKEN_LABEL).map_err(|error| {
        unusable(&error, data).hint("restore certificate and key from one backup, or remove both")
    })
}

fn unusable(error: &IdentityError, data: &Path) -> Failure {
    Failure::operation(chain(error)).at(data.join(CERTIFICATE_FILE).shown())
}
