//! `sealstone-osd`: attribute lists and pages, and the answers to LIST, QUERY and READ MAP.

use sealstone_osd::attribute::list::{
    self, GetNames, ObjectValues, ObjectValuesOsd1, RetrievedWriter, Values, encode_get, encode_set,
};
use sealstone_osd::attribute::page;
use sealstone_osd::listing::{self, End, Listed, Listing, ListingWriter};
use sealstone_osd::map::{self, MapExtent};
use sealstone_osd::query::{CRITERIA_MAX, Criterion, QueryList, QueryType};
use sealstone_osd::{AttributeId, Generation, ObjectType};

use super::osd::of_generation;
use crate::Target;
use crate::input::{GENERATIONS, Input, seed};

type AttributePair<'a> = (AttributeId, &'a [u8]);

const IDS: [AttributeId; 4] = [
    AttributeId::new(0, 0),
    AttributeId::new(0xF001, 1),
    AttributeId::new(AttributeId::ALL, AttributeId::ALL),
    AttributeId::new(0x9000_0003, AttributeId::ALL),
];
const VALUES: [AttributePair<'static>; 4] = [
    (AttributeId::new(1, 1), b""),
    (AttributeId::new(1, 2), b"a"),
    (AttributeId::new(0xF001, 1), &[7; 8]),
    (AttributeId::new(0xF001, 2), &[9; 300]),
];

fn list_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for generation in GENERATIONS {
        let mut add = |bytes: &[u8]| seeds.push(seed(&[0, 200], &of_generation(generation, bytes)));
        add(&encode_get(generation, &IDS));
        add(&encode_get(generation, &[]));
        add(&encode_set(generation, VALUES));
        for allocation in [usize::MAX, 100] {
            let mut out = Vec::new();
            let mut writer = RetrievedWriter::new(generation, &mut out, allocation);
            VALUES.iter().for_each(|(id, value)| writer.push(*id, value));
            let _ = writer.finish();
            add(&out);
            let mut out = Vec::new();
            let mut writer = RetrievedWriter::by_object(generation, &mut out, allocation);
            writer.push_object(0x1_0001, ObjectType::User, &VALUES);
            writer.push_object(0x1_0002, ObjectType::Collection, &VALUES[1..]);
            let _ = writer.finish();
            add(&out);
        }
    }
    seeds
}

fn get_list(generation: Generation, bytes: &[u8]) {
    match GetNames::parse(generation, bytes) {
        Ok(names) => {
            let ids: Vec<_> = names.iter().collect();
            let wire = encode_get(generation, &ids);
            let again = GetNames::parse(generation, &wire).expect("our own list");
            assert!(again.iter().eq(ids));
        }
        Err(error) => drop(error.sense(u64::MAX).encode()),
    }
}

fn set_list(generation: Generation, bytes: &[u8]) {
    match Values::parse_set(generation, bytes) {
        Ok(values) => {
            let wire = encode_set(generation, values.iter());
            let again = Values::parse_set(generation, &wire).expect("our own list");
            assert!(again.iter().eq(values.iter()));
        }
        Err(error) => drop(error.sense(0).encode()),
    }
}

fn retrieved_list(generation: Generation, bytes: &[u8], allocation: usize) {
    let Ok(values) = Values::parse_retrieved(generation, bytes) else { return };
    let pairs: Vec<AttributePair<'_>> = values.iter().collect();
    let write = |allocation| {
        let mut out = Vec::new();
        let mut writer = RetrievedWriter::new(generation, &mut out, allocation);
        pairs.iter().for_each(|(id, value)| writer.push(*id, value));
        let full = writer.finish();
        (out, full)
    };
    let (whole, full) = write(usize::MAX);
    assert_eq!(whole.len() as u64, full);
    let again = Values::parse_retrieved(generation, &whole).expect("our own list");
    assert!(again.iter().eq(pairs.iter().copied()) && again.full_len() == full);
    let (cut, reported) = write(allocation);
    assert!(cut.len() <= allocation && reported == full && whole.starts_with(&cut[..cut.len().min(2)]));
    if let Ok(values) = Values::parse_retrieved(generation, &cut) {
        assert!(values.iter().zip(&pairs).all(|(cut, whole)| cut == *whole));
        assert!(cut.len() < list::header_len(generation) || values.full_len() == full);
    }
}

fn by_object_osd2(bytes: &[u8]) {
    let Ok(entries) = ObjectValues::parse(bytes) else { return };
    let entries: Vec<_> = entries.collect();
    let kinds: Vec<_> = entries.iter().map(|entry| ObjectType::from_byte(entry.kind)).collect();
    if kinds.iter().any(Option::is_none) {
        return;
    }
    let mut out = Vec::new();
    let mut writer = RetrievedWriter::by_object(Generation::Osd2, &mut out, usize::MAX);
    for (entry, kind) in entries.iter().zip(kinds.into_iter().flatten()) {
        writer.push_object(entry.object, kind, &entry.values.iter().collect::<Vec<_>>());
    }
    let full = writer.finish();
    assert_eq!(out.len() as u64, full);
    let again: Vec<_> = ObjectValues::parse(&out).expect("our own list").collect();
    assert_eq!(again.len(), entries.len());
    for (one, other) in again.iter().zip(&entries) {
        assert_eq!((one.object, one.kind), (other.object, other.kind));
        assert!(one.values.iter().eq(other.values.iter()));
    }
}

fn by_object_osd1(bytes: &[u8]) {
    let Ok(entries) = ObjectValuesOsd1::parse(bytes) else { return };
    let entries: Vec<_> = entries.collect();
    let mut out = Vec::new();
    let mut writer = RetrievedWriter::by_object(Generation::Osd1, &mut out, usize::MAX);
    entries.iter().for_each(|(object, id, value)| {
        writer.push_object(*object, ObjectType::User, &[(*id, *value)]);
    });
    let _ = writer.finish();
    assert!(ObjectValuesOsd1::parse(&out).expect("our own list").eq(entries));
}

fn lists(input: &[u8]) {
    let mut input = Input::new(input);
    let allocation = usize::from(input.short());
    let generation = input.generation();
    let bytes = input.rest();
    get_list(generation, bytes);
    set_list(generation, bytes);
    retrieved_list(generation, bytes, allocation);
    by_object_osd2(bytes);
    by_object_osd1(bytes);
}

pub(crate) const ATTRIBUTE_LISTS: Target = Target {
    name: "osd-attribute-lists",
    about: "allocation length, generation, then an attribute list read as every type; all but cut ones round-trip",
    run: lists,
    seeds: list_seeds,
    cost: 4,
    quarantine: None,
    covers: &[
        "osd::GetNames::parse",
        "osd::Values::parse_set",
        "osd::Values::parse_retrieved",
        "osd::ObjectValues::parse",
        "osd::ObjectValues::entries",
        "osd::ObjectValuesOsd1::parse",
    ],
};

/// Candidate pages with a page format in either generation.
fn pages() -> Vec<(Generation, u32)> {
    let bases = [0, 0x3000_0000, 0x6000_0000, 0x9000_0000, 0xF000_0000, 0xFFFF_FFF0];
    let all = bases.into_iter().flat_map(|base| (0..16).map(move |page| base + page));
    all.flat_map(|page| GENERATIONS.map(|generation| (generation, page)))
        .filter(|(generation, page)| page::layout(*generation, *page).is_some())
        .collect()
}

fn page_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = pages()
        .into_iter()
        .enumerate()
        .map(|(at, (generation, page))| {
            let mut out = Vec::new();
            page::encode(generation, page, |_| Some(&[0x5A; 40]), &mut out, usize::MAX);
            seed(&[at as u8], &out)
        })
        .collect();
    assert!(seeds.len() > 10, "pages with a format are found");
    let mut out = Vec::new();
    page::encode_memberships(&[0x1_0002, 0x1_0003], &mut out, usize::MAX);
    seeds.push(seed(&[0], &out));
    seeds
}

fn page_format(input: &[u8]) {
    let mut input = Input::new(input);
    let pages = pages();
    let (generation, page) = pages[usize::from(input.byte()) % pages.len()];
    let bytes = input.rest();
    if let Some(values) = page::parse(generation, page, bytes) {
        let get = |number: u32| values.iter().find(|(one, _)| *one == number).map(|(_, value)| *value);
        let mut out = Vec::new();
        let full = page::encode(generation, page, get, &mut out, usize::MAX);
        assert_eq!(out.len() as u64, full);
        assert_eq!(page::parse(generation, page, &out), Some(values));
    }
    if let Some(ids) = page::parse_memberships(bytes) {
        let mut out = Vec::new();
        page::encode_memberships(&ids, &mut out, usize::MAX);
        assert_eq!(page::parse_memberships(&out), Some(ids));
    }
}

pub(crate) const ATTRIBUTE_PAGES: Target = Target {
    name: "osd-attribute-pages",
    about: "which page, then a page in page format; what parses encodes and parses the same",
    run: page_format,
    seeds: page_seeds,
    cost: 2,
    quarantine: None,
    covers: &["osd::page::parse", "osd::page::parse_memberships"],
};

fn listing_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for generation in GENERATIONS {
        for listed in [Listed::Partitions, Listed::Collections, Listed::Objects] {
            for (with_attributes, end) in [
                (false, End::Complete),
                (true, End::Complete),
                (false, End::Continued { next: 9, total: Some(100), list_id: 7 }),
                (false, End::Continued { next: 9, total: None, list_id: 0 }),
            ] {
                let mut out = Vec::new();
                let mut writer =
                    ListingWriter::new(generation, listed, with_attributes, &mut out, usize::MAX);
                assert!((0x1_0000..0x1_0003).all(|id| writer.push(id, &VALUES)));
                let _ = writer.finish(true, end);
                seeds.push(of_generation(generation, &out));
            }
        }
    }
    let mut out = Vec::new();
    listing::encode_matches(&[1, 2, 3], &mut out, usize::MAX);
    seeds.push(of_generation(Generation::Osd2, &out));
    seeds
}

fn listing(input: &[u8]) {
    let mut input = Input::new(input);
    let generation = input.generation();
    let bytes = input.rest();
    if let Some(listing) = Listing::parse(generation, bytes) {
        let ids: Vec<u64> = listing.ids().collect();
        assert!(ids.len() <= bytes.len() / 8);
        let entries: Vec<_> = listing.entries().collect();
        let mut out = Vec::new();
        let mut writer =
            ListingWriter::new(generation, listing.listed, listing.with_attributes, &mut out, usize::MAX);
        ids.iter().for_each(|id| assert!(writer.push(*id, &[])));
        entries.iter().for_each(|entry| {
            assert!(writer.push(entry.object, &entry.values.iter().collect::<Vec<_>>()));
        });
        let _ = writer.finish(listing.changed, End::Complete);
        let again = Listing::parse(generation, &out).expect("our own list");
        assert_eq!((again.listed, again.changed), (listing.listed, listing.changed));
        assert!(again.ids().eq(ids));
        assert!(again.entries().map(|entry| entry.object).eq(entries.iter().map(|entry| entry.object)));
        for (one, other) in again.entries().zip(&entries) {
            assert!(one.values.iter().eq(other.values.iter()));
        }
    }
    if let Some(ids) = listing::parse_matches(bytes) {
        let mut out = Vec::new();
        listing::encode_matches(&ids, &mut out, usize::MAX);
        assert_eq!(listing::parse_matches(&out), Some(ids));
    }
}

pub(crate) const LISTING: Target = Target {
    name: "osd-listing",
    about: "generation, then an answer to LIST or QUERY; its ids, or objects with values, round-trip",
    run: listing,
    seeds: listing_seeds,
    cost: 2,
    quarantine: None,
    covers: &["osd::Listing::parse", "osd::listing::parse_matches"],
};

fn query_seeds() -> Vec<Vec<u8>> {
    let one =
        |min: &'static [u8], max: &'static [u8]| Criterion { id: AttributeId::new(0x1_0003, 1), min, max };
    let lists = [
        QueryList { kind: QueryType::Union, criteria: vec![] },
        QueryList { kind: QueryType::Union, criteria: vec![one(b"", b"")] },
        QueryList { kind: QueryType::Intersection, criteria: vec![one(b"abc", b"d"), one(b"", &[9; 100])] },
        QueryList { kind: QueryType::Union, criteria: vec![one(b"", b"x"); CRITERIA_MAX] },
    ];
    lists.iter().map(|list| list.encode().expect("a seed within the limits")).collect()
}

fn query(input: &[u8]) {
    let Ok(list) = QueryList::parse(input) else { return };
    assert!(list.criteria.len() <= CRITERIA_MAX);
    let wire = list.encode().expect("what parses is within the limits");
    assert_eq!(QueryList::parse(&wire).as_ref(), Ok(&list));
    for value in [&b""[..], b"abc", input] {
        let _ = list.matches(|_| value);
    }
}

pub(crate) const QUERY: Target = Target {
    name: "osd-query",
    about: "a query list; what parses encodes, parses the same, and can be asked",
    run: query,
    seeds: query_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::QueryList::parse"],
};

fn map_seeds() -> Vec<Vec<u8>> {
    let stretches: Vec<MapExtent> =
        map::split(map::WRITTEN, 0, 5 << 31).chain(map::split(map::HOLE, 7, 9)).collect();
    [usize::MAX, 40, 8]
        .map(|allocation| {
            let mut out = Vec::new();
            map::encode(&stretches, &mut out, allocation);
            out
        })
        .to_vec()
}

fn read_map(input: &[u8]) {
    if let Some((stretches, _)) = map::parse(input) {
        let mut out = Vec::new();
        let full = map::encode(&stretches, &mut out, usize::MAX);
        assert_eq!(out.len() as u64, full);
        assert_eq!(map::parse(&out), Some((stretches, full)));
    }
    let mut input = Input::new(input);
    let (offset, length) = (input.long(), input.long());
    let total: u64 = map::split(1, offset, length).take(3).map(|stretch| u64::from(stretch.length)).sum();
    assert_eq!(total, length.min(3 << 31));
}

pub(crate) const MAP: Target = Target {
    name: "osd-map",
    about: "an answer to READ MAP; its stretches round-trip",
    run: read_map,
    seeds: map_seeds,
    cost: 1,
    quarantine: None,
    covers: &["osd::map::parse"],
};
