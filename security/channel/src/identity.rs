//! Certificates and their keys: those of one daemon, and the authority that signs them for a
//! cluster.

use core::fmt;
use core::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use zeroize::Zeroizing;

use crate::Pin;

/// Name of an authority in certificates. It is not used for lookup: the pin identifies the
/// authority.
const AUTHORITY_NAME: &str = "Sealstone cluster authority";
/// How long before its creation a certificate is valid, for clocks that are behind.
const CLOCKS_BEHIND: Duration = Duration::from_secs(24 * 3600);

/// A certificate with its chain and key.
pub struct TlsIdentity {
    /// Certificates in DER: the own one, then that of the authority, if one signed it.
    pub chain: Vec<Vec<u8>>,
    /// The private key in PKCS #8.
    pub key: Zeroizing<Vec<u8>>,
}

/// Why a certificate cannot be created or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// It cannot be created.
    #[error("cannot create a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// Certificate and key do not match, or one is damaged.
    #[error("certificate and key do not match, or are damaged: {0}")]
    Unfit(rustls::Error),
    /// There is no certificate.
    #[error("there is no certificate")]
    Empty,
}

impl TlsIdentity {
    /// Creates a key and a self-signed certificate for `name`. It does not expire: peers that pin
    /// it check no date.
    ///
    /// # Errors
    /// [`IdentityError::Make`].
    pub fn self_signed(name: &str) -> Result<Self, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = CertificateParams::new(vec![name.to_owned()])?.self_signed(&key)?;
        Ok(Self { chain: vec![certificate.der().to_vec()], key: Zeroizing::new(key.serialize_der()) })
    }

    /// Returns the pin of exactly this certificate.
    ///
    /// # Errors
    /// [`IdentityError::Empty`].
    pub fn pin(&self) -> Result<Pin, IdentityError> {
        self.chain.first().map(|der| Pin::certificate(der)).ok_or(IdentityError::Empty)
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("pin", &self.pin().ok()).finish_non_exhaustive()
    }
}

/// Signs the certificates of a cluster.
pub struct CertificateAuthority {
    certificate: Vec<u8>,
    key: KeyPair,
}

impl CertificateAuthority {
    /// Creates an authority. Its certificate does not expire; to replace it, replace the pins.
    ///
    /// # Errors
    /// [`IdentityError::Make`].
    pub fn new() -> Result<Self, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = Self::params().self_signed(&key)?.der().to_vec();
        Ok(Self { certificate, key })
    }

    /// Loads an authority from its certificate in DER and its key (PKCS #8).
    ///
    /// # Errors
    /// [`IdentityError::Make`] if the key cannot be read.
    pub fn load(certificate: Vec<u8>, key: &[u8]) -> Result<Self, IdentityError> {
        let key = KeyPair::from_pkcs8_der_and_sign_algo(
            &PrivatePkcs8KeyDer::from(key.to_vec()),
            &PKCS_ECDSA_P256_SHA256,
        )?;
        Ok(Self { certificate, key })
    }

    /// Returns its certificate, DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns its key, PKCS #8.
    #[must_use]
    pub fn key(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.key.serialize_der())
    }

    /// Returns the pin that matches every certificate it signed.
    #[must_use]
    pub fn pin(&self) -> Pin {
        Pin::authority(&self.certificate)
    }

    /// Creates a key and a certificate for `name`, valid for `life` from a day before `now_ms`
    /// (since 1970).
    ///
    /// # Errors
    /// [`IdentityError::Make`].
    pub fn issue(&self, name: &str, now_ms: u64, life: Duration) -> Result<TlsIdentity, IdentityError> {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let now = Duration::from_millis(now_ms);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.not_before = epoch + now.saturating_sub(CLOCKS_BEHIND);
        params.not_after = epoch + now.saturating_add(life);
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::new(Self::params(), &self.key);
        let certificate = params.signed_by(&key, &issuer)?.der().to_vec();
        Ok(TlsIdentity {
            chain: vec![certificate, self.certificate.clone()],
            key: Zeroizing::new(key.serialize_der()),
        })
    }

    /// The same each time: signed certificates must name the issuer as its own certificate does.
    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, AUTHORITY_NAME);
        params.distinguished_name = name;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("pin", &self.pin()).finish_non_exhaustive()
    }
}
