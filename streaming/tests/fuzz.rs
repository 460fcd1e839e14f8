//! The fuzz targets of this crate, by the fuzzer of `fuzzer`.

mod fuzzer;

use bytes::BytesMut;
use fuzzer::run;
use keelson_streaming::fuzz;
use keelson_streaming::spdy::{Encoder, Headers};

#[test]
fn spdy_frames() {
    let mut encoder = Encoder::default();
    let mut wire = BytesMut::new();
    let headers = Headers::new([("streamtype", "data"), ("port", "8080"), ("requestid", "1")]);
    encoder.syn_stream(1, &headers, false, &mut wire);
    encoder.syn_reply(1, &Headers::default(), &mut wire);
    encoder.syn_stream(3, &headers, true, &mut wire);
    let mut plain = BytesMut::new();
    Encoder::data(1, b"some bytes", &mut plain);
    Encoder::fin(1, &mut plain);
    Encoder::rst_stream(1, 3, &mut plain);
    Encoder::ping(1, &mut plain);
    Encoder::go_away(1, &mut plain);
    let with_step = |step: u8, bytes: &[u8]| [&[step][..], bytes].concat();
    run(fuzz::spdy, vec![with_step(255, &wire), with_step(3, &plain), with_step(7, &[&wire[..], &plain[..]].concat())]);
}

#[test]
fn channel_messages() {
    run(fuzz::channels, vec![b"\x00hello".to_vec(), b"1aGVsbG8=".to_vec(), vec![255, 0], vec![4], Vec::new()]);
}
