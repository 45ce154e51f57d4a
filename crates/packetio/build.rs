//! Packs the larger programs for the kernel, which `crate::ebpf::unpacked` reads: a static program
//! for small routers has 8 MB for everything.

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var("OUT_DIR")?;
    for name in ["ask.o", "first.o", "kernel.o"] {
        let object = Path::new("bpf").join(name);
        println!("cargo::rerun-if-changed={}", object.display());
        let file = File::create(Path::new(&folder).join(name))?;
        let mut packed = ZlibEncoder::new(file, Compression::best());
        packed.write_all(&fs::read(object)?)?;
        packed.finish()?;
    }
    Ok(())
}
