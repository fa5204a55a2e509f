//! The compared protocols: plain TCP, the four security methods, and ALLDATA with each algorithm.

use sealstone_digest::Profile;
use sealstone_osd::SecurityMethod;
use sealstone_seal::algorithm::{
    SLOT_HMAC_SHA1, SLOT_HMAC_SHA256, SLOT_UNITS_ADHASH, SLOT_UNITS_BLAKE3, SLOT_UNITS_SHA1,
};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Contender {
    /// No protocol at all.
    Tcp,
    NoSec,
    /// NOSEC with a client that computes ALLDATA's digests of read data and discards them. The
    /// difference to ALLDATA is the device's own cost, not that of a client that uses caches and
    /// memory.
    #[serde(rename = "NOSEC-HASHED")]
    NoSecHashed,
    CapKey,
    CmdRsp,
    /// With the default algorithm: HMAC-SHA256 over BLAKE3 units, F3h.
    AllData,
    /// The four methods inside TLS 1.3.
    #[serde(rename = "NOSEC-TLS")]
    NoSecTls,
    #[serde(rename = "CAPKEY-TLS")]
    CapKeyTls,
    #[serde(rename = "CMDRSP-TLS")]
    CmdRspTls,
    #[serde(rename = "ALLDATA-TLS")]
    AllDataTls,
    /// HMAC-SHA256 over all bytes, F1h.
    #[serde(rename = "ALLDATA-F1H")]
    AllDataF1,
    /// HMAC-SHA1 over all bytes, 01h.
    #[serde(rename = "ALLDATA-01H")]
    AllData01,
    /// HMAC-SHA1 over SHA-1 units, F4h.
    #[serde(rename = "ALLDATA-F4H")]
    AllDataF4,
    /// HMAC-SHA1 over AdHash units, F5h.
    #[serde(rename = "ALLDATA-F5H")]
    AllDataF5,
    /// ALLDATA in a partition that also keeps a sum over the digests of each object.
    #[serde(rename = "ALLDATA-LTHASH")]
    AllDataLt,
}

impl Contender {
    /// Contenders of a normal run.
    pub(crate) const ALL: [Self; 5] = [Self::Tcp, Self::NoSec, Self::CapKey, Self::CmdRsp, Self::AllData];
    /// Contenders of a run that compares algorithms.
    pub(crate) const ALGORITHMS: [Self; 7] = [
        Self::NoSec,
        Self::AllData,
        Self::AllDataLt,
        Self::AllDataF1,
        Self::AllData01,
        Self::AllDataF4,
        Self::AllDataF5,
    ];
    /// Contenders of a run that compares TLS.
    pub(crate) const TLS: [Self; 8] = [
        Self::NoSec,
        Self::NoSecTls,
        Self::CapKey,
        Self::CapKeyTls,
        Self::CmdRsp,
        Self::CmdRspTls,
        Self::AllData,
        Self::AllDataTls,
    ];
    /// All contenders.
    pub(crate) const EVERY: [Self; 15] = [
        Self::Tcp,
        Self::NoSec,
        Self::NoSecHashed,
        Self::CapKey,
        Self::CmdRsp,
        Self::AllData,
        Self::NoSecTls,
        Self::CapKeyTls,
        Self::CmdRspTls,
        Self::AllDataTls,
        Self::AllDataF1,
        Self::AllData01,
        Self::AllDataF4,
        Self::AllDataF5,
        Self::AllDataLt,
    ];

    /// Parses a name, in letters of any case.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let found = Self::EVERY.into_iter().find(|contender| contender.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("one of {}", Self::EVERY.map(Self::name).join(", ")))
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::NoSec => "NOSEC",
            Self::NoSecHashed => "NOSEC-HASHED",
            Self::CapKey => "CAPKEY",
            Self::CmdRsp => "CMDRSP",
            Self::AllData => "ALLDATA",
            Self::NoSecTls => "NOSEC-TLS",
            Self::CapKeyTls => "CAPKEY-TLS",
            Self::CmdRspTls => "CMDRSP-TLS",
            Self::AllDataTls => "ALLDATA-TLS",
            Self::AllDataF1 => "ALLDATA-F1H",
            Self::AllData01 => "ALLDATA-01H",
            Self::AllDataF4 => "ALLDATA-F4H",
            Self::AllDataF5 => "ALLDATA-F5H",
            Self::AllDataLt => "ALLDATA-LTHASH",
        }
    }

    /// Returns its security method; `None` for plain TCP.
    pub(crate) const fn method(self) -> Option<SecurityMethod> {
        match self {
            Self::Tcp => None,
            Self::NoSec | Self::NoSecHashed | Self::NoSecTls => Some(SecurityMethod::NoSec),
            Self::CapKey | Self::CapKeyTls => Some(SecurityMethod::CapKey),
            Self::CmdRsp | Self::CmdRspTls => Some(SecurityMethod::CmdRsp),
            Self::AllData
            | Self::AllDataTls
            | Self::AllDataF1
            | Self::AllData01
            | Self::AllDataF4
            | Self::AllDataF5
            | Self::AllDataLt => Some(SecurityMethod::AllData),
        }
    }

    /// Returns the same method in plain text, for contenders inside TLS.
    pub(crate) const fn in_plain_text(self) -> Option<Self> {
        match self {
            Self::NoSecTls => Some(Self::NoSec),
            Self::CapKeyTls => Some(Self::CapKey),
            Self::CmdRspTls => Some(Self::CmdRsp),
            Self::AllDataTls => Some(Self::AllData),
            _ => None,
        }
    }

    /// Returns the algorithm slot of its credentials.
    pub(crate) const fn slot(self) -> u8 {
        match self {
            Self::Tcp | Self::NoSec | Self::NoSecHashed | Self::CapKey | Self::CmdRsp | Self::AllDataF1 => {
                SLOT_HMAC_SHA256
            }
            Self::NoSecTls | Self::CapKeyTls | Self::CmdRspTls => SLOT_HMAC_SHA256,
            Self::AllData | Self::AllDataTls | Self::AllDataLt => SLOT_UNITS_BLAKE3,
            Self::AllData01 => SLOT_HMAC_SHA1,
            Self::AllDataF4 => SLOT_UNITS_SHA1,
            Self::AllDataF5 => SLOT_UNITS_ADHASH,
        }
    }

    /// Returns the digests that its objects are stored with, over which its check values are
    /// computed.
    pub(crate) const fn profile(self) -> Profile {
        match self {
            Self::AllDataF4 => Profile::Sha1,
            Self::AllDataF5 => Profile::AdHash256,
            Self::AllDataLt => Profile::LtHash,
            _ => Profile::Blake3,
        }
    }
}
