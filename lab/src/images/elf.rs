//! Just enough of ELF to refuse a dynamically linked program before its container fails with "no such file or directory".

use std::fs;
use std::path::Path;

use super::ImageError;

const PT_INTERP: u32 = 3;

/// Reads a program and checks that it needs no loader.
pub fn read_static_program(path: &Path) -> Result<Vec<u8>, ImageError> {
    let data = fs::read(path).map_err(ImageError::io("read", path))?;
    match interpreter(&data) {
        Ok(None) => Ok(data),
        Ok(Some(interpreter)) => Err(ImageError::NotStatic { path: path.to_owned(), interpreter }),
        Err(reason) => Err(ImageError::NotElf { path: path.to_owned(), reason }),
    }
}

/// The loader a 64-bit little-endian ELF program asks for, if any.
pub fn interpreter(data: &[u8]) -> Result<Option<String>, &'static str> {
    if data.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("its magic number says otherwise");
    }
    let truncated = "its program headers are cut off";
    let table = number::<8>(data, 32).ok_or(truncated)?;
    let size = number::<2>(data, 54).ok_or(truncated)?;
    let count = number::<2>(data, 56).ok_or(truncated)?;
    for index in 0..count {
        let at = index.checked_mul(size).and_then(|offset| table.checked_add(offset)).ok_or(truncated)?;
        if number::<4>(data, at).ok_or(truncated)? != PT_INTERP as usize {
            continue;
        }
        let start = number::<8>(data, at + 8).ok_or(truncated)?;
        let length = number::<8>(data, at + 32).ok_or(truncated)?;
        let end = start.checked_add(length).ok_or(truncated)?;
        let name = data.get(start..end).ok_or(truncated)?;
        return Ok(Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
    }
    Ok(None)
}

fn number<const BYTES: usize>(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at.checked_add(BYTES)?)?;
    let value = bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
    usize::try_from(value).ok()
}
