use super::*;

pub(crate) fn fields() -> Vec<Field> {
    vec![
        Field::new("flows_begun", "flows", Kind::Counter),
        Field::new("flows_in_flight", "flows", Kind::Gauge),
        Field::new("response", "ns", Kind::Reservoir),
        Field::new("response", "ns", Kind::Histogram),
        Field::new("gap", "ns", Kind::Window),
        Field::new("gap", "ns", Kind::Histogram),
    ]
}

fn written(layout: &Layout) -> Vec<u64> {
    let mut words = vec![0; layout.words];
    layout.write(|word, value| words[word] = value);
    words
}

#[test]
fn a_layout_reads_as_it_was_written() {
    for egresses in [1, 2, 63, 64, 65, 1000] {
        let layout = Layout::new(egresses, &fields()).unwrap();
        let words = written(&layout);
        assert_eq!(Layout::read(words.len(), |word| words[word]).unwrap(), layout);
    }
}

/// The figures of the documentation, for a file as services have by default.
#[test]
fn offsets_are_those_of_version_1() {
    let layout = Layout::new(64, &fields()).unwrap();
    assert_eq!((layout.frames, layout.rows, layout.row_words), (512, 16, 6));
    assert_eq!((layout.frame_words, layout.histogram_words), (400, 136));
    assert_eq!((layout.histograms, layout.histogram_stride), (2048, 416));
    assert_eq!((layout.reservoirs, layout.reservoir_stride), (28672, 776));
    assert_eq!(layout.words, 78336);
    let offsets: Vec<usize> = layout.fields.iter().map(|field| field.offset).collect();
    assert_eq!(offsets, [4, 5, 8, 2, 392, 67]);
    for region in [layout.frames, layout.histograms, layout.reservoirs, layout.words] {
        assert_eq!(region % PAGE_WORDS, 0);
    }
}

#[test]
fn regions_hold_their_parts() {
    for egresses in [1, 64, 65] {
        let layout = Layout::new(egresses, &fields()).unwrap();
        assert!(layout.rows + egresses * layout.row_words <= layout.frame_words);
        assert!(layout.frames + BUFFERS * layout.frame_words <= layout.histograms);
        assert!(layout.histograms + egresses * layout.histogram_stride <= layout.reservoirs);
        assert!(layout.reservoirs + egresses * layout.reservoir_stride <= layout.words);
        for field in &layout.fields {
            let end = match field.kind {
                Kind::Counter | Kind::Gauge => layout.row_words,
                Kind::Reservoir | Kind::Window => layout.reservoir_stride,
                Kind::Histogram => layout.histogram_words,
            };
            assert!(field.offset + field.words <= end);
        }
    }
}

#[test]
fn what_cannot_be_a_file_is_refused() {
    let field = |name: &str, unit: &str| vec![Field::new(name, unit, Kind::Counter)];
    assert!(Layout::new(0, &fields()).is_err());
    assert!(Layout::new(EGRESSES_MAX + 1, &fields()).is_err());
    assert!(Layout::new(1, &field("", "ns")).is_err());
    assert!(Layout::new(1, &field(&"n".repeat(33), "ns")).is_err());
    assert!(Layout::new(1, &field("n", "nanoseconds")).is_err());
    assert!(Layout::new(1, &vec![fields()[0].clone(); FIELDS_MAX + 1]).is_err());
    let large = vec![fields()[2].clone(); FIELDS_MAX];
    assert!(Layout::new(EGRESSES_MAX, &large).is_err());
}

/// Every word of header and schema, with every value that a hostile writer would try.
#[cfg_attr(miri, ignore = "takes minutes, and is safe code throughout")]
#[test]
fn no_header_is_trusted() {
    let layout = Layout::new(2, &fields()).unwrap();
    let words = written(&layout);
    let end = SCHEMA + layout.fields.len() * FIELD_WORDS;
    for word in (0..end).filter(|word| *word != EPOCH) {
        for value in [0, 1, 7, 0xff, words[word] ^ 1, words[word] + 1, u64::MAX / 8, u64::MAX] {
            let mut words = words.clone();
            words[word] = value;
            // Text may say what it wants.
            if let Ok(read) = Layout::read(words.len(), |word| words[word]) {
                assert_eq!((read.words, read.frames), (layout.words, layout.frames));
                assert!(read.reservoirs + 2 * read.reservoir_stride <= words.len());
            }
        }
    }
    for length in (0..layout.words).step_by(97).chain([layout.words - 1]) {
        assert!(Layout::read(length, |word| words[..length][word]).is_err());
    }
    let read = |word: usize, value| {
        let mut words = words.clone();
        words[word] = value;
        Layout::read(words.len(), |word| words[word]).unwrap_err()
    };
    assert!(matches!(read(0, 1), Error::Foreign));
    assert!(matches!(read(1, 2), Error::Version(2)));
    assert!(matches!(read(9, 0), Error::Malformed(_)));
}

#[test]
fn text_is_kept_in_words() {
    for text in ["", "ns", "packets", "server_handshake", "Zürich"] {
        assert_eq!(from_words(to_words(text, 4)).as_deref(), Some(text));
    }
    assert_eq!(from_words([u64::MAX].into_iter()), None);
}
