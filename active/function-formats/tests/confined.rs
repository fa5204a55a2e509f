//! The modules run in the sandboxes of both engines, and give the result of the function on local
//! data.

use sealstone_function_formats::{run_filter, run_thumbnail};

use crate::comparison::{ModuleCase, compare_shared_objects, compare_wasm_modules};

const TABLE: &[u8] = include_bytes!("data/snappy.parquet");
const ZSTD_TABLE: &[u8] = include_bytes!("data/zstd.parquet");
const GZIP_TABLE: &[u8] = include_bytes!("data/gzip.parquet");

/// Returns a picture with a gradient of colours.
fn picture() -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, 500, 300);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("a header");
    let pixels: Vec<u8> =
        (0..500 * 300u32).flat_map(|at| [(at / 500) as u8, at as u8, (at >> 9) as u8]).collect();
    writer.write_image_data(&pixels).expect("pixels");
    writer.finish().expect("an end");
    file
}

/// Calls `check` with calls of all functions of the package.
fn with_cases(check: impl Fn(&[ModuleCase<'_>])) {
    let picture = picture();
    let lines: Vec<u8> = (0..20_000u32).flat_map(|n| format!("{n},{}\n", n % 7).into_bytes()).collect();
    let table = [&b"id,rest\n"[..], &lines].concat();
    let objects: Vec<u8> = (0..9000u32).flat_map(|n| format!("{{\"id\":{n}}}\n").into_bytes()).collect();
    let parquet = b"where=status >= 400 and day > '2026-11-10'\0format=parquet\0";
    let selected = [&parquet[..], b"result-format=parquet\0"].concat();
    let filter =
        |arguments, input| ModuleCase { name: "filter", run: run_filter, arguments, input, objects: 1 };
    let thumbnail =
        |arguments, input| ModuleCase { name: "thumbnail", run: run_thumbnail, arguments, input, objects: 1 };
    check(&[
        filter(b"where=rest = 3 and id < 500\0format=csv\0", &table),
        filter(b"where=id in (1, 8999)\0format=jsonl\0", &objects),
        filter(parquet, TABLE),
        filter(parquet, GZIP_TABLE),
        filter(&selected, TABLE),
        filter(&selected, ZSTD_TABLE),
        filter(b"where=price = 1.99\0format=parquet\0count=true\0", TABLE),
        filter(b"where=none = 1\0format=parquet\0", TABLE),
        filter(parquet, &table),
        thumbnail(b"size=64\0", &picture),
        thumbnail(b"", &table),
    ]);
}

#[test]
fn confined_modules_equal_local_functions() {
    with_cases(compare_shared_objects);
}

#[test]
fn confined_wasm_modules_equal_local_functions() {
    with_cases(|cases| compare_wasm_modules("sealstone-function-formats", cases));
}
