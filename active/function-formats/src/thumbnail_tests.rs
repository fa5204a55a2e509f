//! Tests of `thumbnail`: sizes, orientation, formats, and files that are refused.

use proptest::prelude::*;
use sealstone_function_host::MemoryHost;
use sealstone_functions::parse_result;

use super::*;

/// Returns a picture whose left half is red and whose right half is blue.
fn halves(width: u32, height: u32, channels: usize) -> Picture {
    let mut samples = Vec::new();
    for at in 0..width * height {
        let pixel = if at % width < width / 2 { [250, 10, 10, 255] } else { [10, 10, 250, 255] };
        samples.extend_from_slice(&pixel[..channels]);
    }
    Picture { width, height, channels, samples }
}

fn run(file: &[u8], arguments: &str) -> Result<Vec<u8>, FunctionFailure> {
    let mut host = MemoryHost::new(vec![file.to_vec()]);
    FunctionCall::new(&mut host, "", arguments.as_bytes(), 1).run(run_thumbnail)?;
    let lines: Vec<ResultLine> = parse_result(&host.result).map(|line| line.unwrap()).collect();
    let data = lines.iter().filter_map(|line| match line {
        ResultLine::Data(line) => Some(line.data.clone().into_bytes().unwrap()),
        _ => None,
    });
    let out = data.collect::<Vec<_>>().concat();
    let Some(ResultLine::Output(line)) = lines.last() else { panic!("no end") };
    assert_eq!((line.bytes_in, line.bytes_out), (file.len() as u64, out.len() as u64));
    Ok(out)
}

fn is_near(pixel: &[u8], expected: [u8; 3]) -> bool {
    pixel.iter().zip(expected).all(|(sample, expected)| sample.abs_diff(expected) < 30)
}

/// Returns a JPEG file with an Exif orientation.
fn with_orientation(file: &[u8], orientation: u8) -> Vec<u8> {
    let tiff =
        [&b"MM\0*\0\0\0\x08\0\x01"[..], &[0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0], &[0, 0, 0, 0]]
            .concat();
    let length = (tiff.len() + 8) as u16;
    [&file[..2], &[0xff, 0xe1], &length.to_be_bytes(), b"Exif\0\0", &tiff, &file[2..]].concat()
}

#[test]
fn jpeg_thumbnail_keeps_colours_and_shape() {
    let file = jpeg::encode(&halves(1200, 800, 3)).unwrap();
    for (arguments, size) in [("", (256, 171)), ("size=64\0", (64, 43)), ("size=4096\0", (1200, 800))] {
        let (small, _) = jpeg::decode(&run(&file, arguments).unwrap()).unwrap();
        assert_eq!((small.width, small.height), size);
        let last = small.samples.len() - 3;
        assert!(
            is_near(&small.samples[..3], [250, 10, 10]) && is_near(&small.samples[last..], [10, 10, 250])
        );
    }
}

#[test]
fn orientation_turns_thumbnail() {
    let file = jpeg::encode(&halves(600, 300, 3)).unwrap();
    let (small, _) = jpeg::decode(&run(&with_orientation(&file, 6), "size=100\0").unwrap()).unwrap();
    assert_eq!((small.width, small.height), (50, 100));
    let last = small.samples.len() - 3;
    assert!(is_near(&small.samples[..3], [250, 10, 10]) && is_near(&small.samples[last..], [10, 10, 250]));
    // Malformed Exif data are ignored.
    let mut broken = with_orientation(&file, 6);
    broken[14] = 0xff;
    let (small, _) = jpeg::decode(&run(&broken, "size=100\0").unwrap()).unwrap();
    assert_eq!((small.width, small.height), (100, 50));
}

#[test]
fn png_thumbnail_keeps_transparency() {
    let mut picture = halves(300, 400, 4);
    picture.samples.chunks_mut(4).for_each(|pixel| pixel[3] = if pixel[0] > 100 { 255 } else { 0 });
    let small = png_file::decode(&run(&png_file::encode(&picture).unwrap(), "size=40\0").unwrap()).unwrap();
    assert_eq!((small.width, small.height, small.channels), (30, 40, 4));
    assert_eq!(small.samples[..4], [250, 10, 10, 255]);
    assert_eq!(small.samples[small.samples.len() - 1], 0);
}

#[test]
fn all_colour_types_of_png_are_read() {
    use png::{BitDepth, ColorType};
    for (color, depth, line) in [
        (ColorType::Grayscale, BitDepth::One, 4),
        (ColorType::Grayscale, BitDepth::Sixteen, 64),
        (ColorType::GrayscaleAlpha, BitDepth::Eight, 64),
        (ColorType::Rgb, BitDepth::Sixteen, 192),
        (ColorType::Indexed, BitDepth::Two, 8),
    ] {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 32, 32);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == ColorType::Indexed {
            encoder.set_palette(vec![0x80; 12]);
        }
        encoder.write_header().unwrap().write_image_data(&vec![0x5a; line * 32]).unwrap();
        let small = png_file::decode(&run(&file, "size=16\0").unwrap()).unwrap();
        assert_eq!((small.width, small.height), (16, 16), "{color:?} {depth:?}");
    }
}

#[test]
fn pictures_beyond_limits_are_refused() {
    let file = jpeg::encode(&halves(64, 64, 3)).unwrap();
    let start = file.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    let mut large = file.clone();
    large[start + 5..start + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    let failure = run(&large, "").unwrap_err();
    assert_eq!(failure.errno, FunctionErrno::TOO_LARGE, "{}", failure.message);
    assert!(failure.message.contains("a picture of 65535 x 65535 pixels needs"), "{}", failure.message);

    let mut file = png_file::encode(&halves(64, 64, 4)).unwrap();
    file[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let crc = {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&file[12..29]);
        hasher.finalize()
    };
    file[29..33].copy_from_slice(&crc.to_be_bytes());
    let failure = run(&file, "").unwrap_err();
    assert_eq!(failure.errno, FunctionErrno::TOO_LARGE, "{}", failure.message);
}

#[test]
fn malformed_pictures_are_refused_precisely() {
    let message = |file: &[u8], arguments: &str| run(file, arguments).unwrap_err().message.into_owned();
    assert_eq!(message(b"text", ""), "object 0: the file is neither a JPEG nor a PNG picture");
    assert_eq!(message(b"", ""), "object 0: the file is neither a JPEG nor a PNG picture");
    assert_eq!(message(b"", "size=15\0"), "argument size: expected 16 to 4096 pixels");
    let jpeg = jpeg::encode(&halves(640, 480, 3)).unwrap();
    let png = png_file::encode(&halves(640, 480, 4)).unwrap();
    for (format, file) in [("JPEG", &jpeg), ("PNG", &png)] {
        for length in [4, 30, file.len() / 2] {
            let text = message(&file[..length], "");
            assert!(text.starts_with(&format!("object 0: invalid {format} picture: ")), "{length}: {text}");
            assert!(!text.contains('"'), "{text}");
        }
    }
    let mut host = MemoryHost::new(vec![jpeg]);
    let failure = FunctionCall::new(&mut host, "", b"stripe.0=4,2,0,16\0", 1).run(run_thumbnail).unwrap_err();
    assert_eq!(failure.errno, FunctionErrno::UNSUPPORTED);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn changed_pictures_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        is_png: bool,
    ) {
        let picture = halves(48, 32, if is_png { 4 } else { 3 });
        let encode = if is_png { png_file::encode } else { jpeg::encode };
        let mut file = encode(&picture).unwrap();
        for (at, value) in changes {
            let at = at.index(file.len());
            file[at] = value;
        }
        file.truncate(file.len() - cut.index(file.len() / 4));
        let _ = make_thumbnail(file, 16);
    }
}
