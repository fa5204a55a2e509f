//! The table of tests.

use crate::device::Device;
use crate::target::Portal;
use crate::tests;

/// Requirements of a test.
#[derive(Clone, Copy)]
pub(crate) enum TestScope {
    /// A device; runs for each generation, with the strongest method for which there are keys.
    Osd(fn(&mut Device)),
    /// As `Osd`, for OSD-2 only.
    Osd2(fn(&mut Device)),
    /// A device with known keys; runs for each generation.
    Secured(fn(&mut Device)),
    /// A device that accepts NOSEC.
    Open(fn(&mut Device)),
    /// A device that accepts NOSEC and may be formatted: only one that was started here.
    Whole(fn(&mut Device)),
    /// A device with keys that is started for this test alone.
    Alone(fn(&mut Device)),
    /// A portal with CHAP: only one that was started here.
    Guarded(fn(&Portal)),
    /// A block logical unit.
    Block(fn(&Portal)),
    /// A portal: iSCSI, and commands of all logical units.
    Iscsi(fn(&Portal)),
}

impl TestScope {
    const fn name(self) -> &'static str {
        match self {
            Self::Osd(_) => "OSD-1, OSD-2",
            Self::Osd2(_) => "OSD-2",
            Self::Secured(_) => "with keys",
            Self::Open(_) => "NOSEC",
            Self::Whole(_) => "NOSEC, erases",
            Self::Alone(_) => "with keys, alone",
            Self::Guarded(_) => "with accounts",
            Self::Block(_) => "block unit",
            Self::Iscsi(_) => "iSCSI",
        }
    }
}

/// One behaviour.
pub struct Test {
    /// Area of the test.
    pub area: &'static str,
    /// Name, which states the behaviour.
    pub name: &'static str,
    /// Clause of the standard.
    pub clause: &'static str,
    /// Requirements of the test on the target.
    pub(crate) scope: TestScope,
}

impl Test {
    /// Returns the requirements as in the list of tests.
    #[must_use]
    pub const fn runs(&self) -> &'static str {
        self.scope.name()
    }
}

/// Declares the tests of a file: scope, clause, function.
macro_rules! behaviours {
    ($area:literal; $($scope:ident $clause:literal $name:ident;)*) => {
        pub(crate) static TESTS: &[crate::suite::Test] = &[$(crate::suite::Test {
            area: $area,
            name: stringify!($name),
            clause: $clause,
            scope: crate::suite::TestScope::$scope($name),
        }),*];
    };
}
pub(crate) use behaviours;

/// Every test, by area.
pub static TESTS: &[&[Test]] = &[
    tests::login::TESTS,
    tests::chap::TESTS,
    tests::session::TESTS,
    tests::spc::TESTS,
    tests::partitions::TESTS,
    tests::objects::TESTS,
    tests::data::TESTS,
    tests::scatter::TESTS,
    tests::listing::TESTS,
    tests::attributes::TESTS,
    tests::pages::TESTS,
    tests::cdbs::TESTS,
    tests::collections::TESTS,
    tests::maps::TESTS,
    tests::duplicates::TESTS,
    tests::rewrite::TESTS,
    tests::perform::TESTS,
    tests::security::TESTS,
    tests::keys::TESTS,
    tests::master::TESTS,
    tests::block::TESTS,
    tests::capture::TESTS,
];
