//! What is remembered of leases that were given back.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_was_given_back_stays_given_back_when_it_is_not_remembered_by_itself() {
    let mut book: Book<(), ()> = Book {
        era: 1,
        known: 0,
        until: None,
        entries: BTreeMap::new(),
        overtaken: BTreeMap::new(),
        gone: BTreeMap::new(),
        gone_upto: 0,
    };
    book.note_gone(InodeId(1), 7);
    // One of before that is told of late.
    book.note_gone(InodeId(1), 5);
    assert_eq!(book.is_gone(InodeId(1), 7), Some(false), "it may be on its way back");
    assert_eq!(book.is_gone(InodeId(2), 6), None);
    sleep(GONE_FOR).await;
    assert_eq!(book.is_gone(InodeId(1), 7), Some(true));
    for inode in 0..GONE_MAX as u64 {
        book.note_gone(InodeId(100 + inode), 8 + inode);
    }
    assert!(book.gone.len() <= GONE_MAX && !book.gone.contains_key(&InodeId(1)));
    assert_eq!(book.is_gone(InodeId(1), 7), Some(true));
    assert_eq!(book.is_gone(InodeId(1), 8), None, "a later one");
}
