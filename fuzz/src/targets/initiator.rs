//! `sealstone-initiator`: iSCSI URLs.

use sealstone_initiator::TargetUrl;

use crate::Target;

fn url(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(url) = text.parse::<TargetUrl>() {
        assert_eq!(url.to_string().parse(), Ok(url.clone()));
        assert!(!url.authority().is_empty());
    }
}

pub(crate) const URL: Target = Target {
    name: "initiator-url",
    about: "text as an iscsi:// address; what parses prints to something equal",
    run: url,
    seeds: || {
        let texts = [
            "iscsi://127.0.0.1:3260/iqn.2026-11.org.sealstone:osd.a/0",
            "iscsi://[::1]:9/eui.02004567a425678d/16383",
            "iscsi://osd-1/naa.52004567ba64678d/3",
            "iscsi://[fe80::1]/iqn.x/0",
        ];
        texts.map(|text| text.as_bytes().to_vec()).to_vec()
    },
    cost: 1,
    quarantine: None,
    covers: &["initiator::TargetUrl::from_str"],
};
