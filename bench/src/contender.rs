//! Who is compared: plain TCP, and the four security methods.

use sealstone_osd::SecurityMethod;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Contender {
    /// No protocol at all.
    Tcp,
    NoSec,
    CapKey,
    CmdRsp,
    AllData,
}

impl Contender {
    pub(crate) const ALL: [Self; 5] = [Self::Tcp, Self::NoSec, Self::CapKey, Self::CmdRsp, Self::AllData];

    /// From its name, in letters of any case.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|contender| contender.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::name).join(", ")))
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::NoSec => "NOSEC",
            Self::CapKey => "CAPKEY",
            Self::CmdRsp => "CMDRSP",
            Self::AllData => "ALLDATA",
        }
    }

    /// Its security method; plain TCP has none.
    pub(crate) const fn method(self) -> Option<SecurityMethod> {
        match self {
            Self::Tcp => None,
            Self::NoSec => Some(SecurityMethod::NoSec),
            Self::CapKey => Some(SecurityMethod::CapKey),
            Self::CmdRsp => Some(SecurityMethod::CmdRsp),
            Self::AllData => Some(SecurityMethod::AllData),
        }
    }
}
