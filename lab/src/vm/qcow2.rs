//! The header of an empty qcow2 overlay over a raw base image, so that no `qemu-img` is needed.
//!
//! Format: QEMU's docs/interop/qcow2.txt, version 3, clusters of 64 KiB, references of 16 bits. The file has five clusters: header,
//! reference table, one block of references, and an L1 table, which is empty: everything is read from the base.

/// Bytes of a cluster.
const CLUSTER: u64 = 1 << CLUSTER_BITS;
const CLUSTER_BITS: u32 = 16;
/// An L2 table maps this much of the disk: 8192 entries of one cluster.
const PER_L2: u64 = CLUSTER / 8 * CLUSTER;
/// The header with its fields up to `header_length`.
const HEADER_LENGTH: u32 = 104;
/// Names the format of the base, so that nothing in it is ever taken for a header.
const BACKING_FORMAT: u32 = 0xe279_2aca;

/// An overlay for a disk of `size` bytes whose base is the raw image at `base` (an absolute path of at most 1023 bytes).
pub fn overlay(size: u64, base: &str) -> Vec<u8> {
    let entries = size.div_ceil(PER_L2);
    let mut head = Vec::new();
    let long = |head: &mut Vec<u8>, value: u64| head.extend(value.to_be_bytes());
    let word = |head: &mut Vec<u8>, value: u32| head.extend(value.to_be_bytes());
    let format = b"raw\0\0\0\0\0";
    let name_at = u64::from(HEADER_LENGTH) + 8 + format.len() as u64 + 8;
    head.extend(b"QFI\xfb");
    word(&mut head, 3);
    long(&mut head, name_at);
    word(&mut head, base.len() as u32);
    word(&mut head, CLUSTER_BITS);
    long(&mut head, size);
    word(&mut head, 0); // not encrypted
    word(&mut head, entries as u32);
    long(&mut head, 3 * CLUSTER); // the L1 table
    long(&mut head, CLUSTER); // the reference table
    word(&mut head, 1); // which has one cluster
    word(&mut head, 0); // no snapshots
    long(&mut head, 0);
    for _features in 0..3 {
        long(&mut head, 0);
    }
    word(&mut head, 4); // references have 2^4 bits
    word(&mut head, HEADER_LENGTH);
    word(&mut head, BACKING_FORMAT);
    word(&mut head, 3);
    head.extend(format);
    long(&mut head, 0); // no more extensions
    head.extend(base.as_bytes());

    let mut file = vec![0; 4 * CLUSTER as usize];
    let mut put = |at: u64, bytes: &[u8]| file[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    put(0, &head);
    put(CLUSTER, &(2 * CLUSTER).to_be_bytes());
    for used in 0..4 {
        put(2 * CLUSTER + 2 * used, &1u16.to_be_bytes());
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_points_at_its_tables_and_its_base() {
        let base = "/some/where/disk.raw";
        let file = overlay(6 << 30, base);
        assert_eq!(file.len() as u64, 4 * CLUSTER);
        assert_eq!(&file[..8], b"QFI\xfb\0\0\0\x03");
        let long = |at: usize| u64::from_be_bytes(file[at..at + 8].try_into().unwrap());
        let name = long(8) as usize;
        assert_eq!(&file[name..name + base.len()], base.as_bytes());
        assert_eq!(long(24), 6 << 30);
        assert_eq!(u32::from_be_bytes(file[36..40].try_into().unwrap()), 12);
        assert_eq!((long(40), long(48)), (3 * CLUSTER, CLUSTER));
        assert_eq!(long(CLUSTER as usize), 2 * CLUSTER);
    }
}
