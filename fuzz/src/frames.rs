//! Requests that no client sends: every frame is read or refused, what is read stays within its bounds, and is handled and answered as far as that goes without a broker.

use bytes::Bytes;
use kafka_api::frame::{self, Frame, Request};
use kafka_api::testing::handling;
use kafka_api::testing::world::World;
use kafka_api::{limits, schema};

use crate::memory;

/// Memory that a request may take: so many times its bytes, and this many besides. An element of an array is more in memory than on the wire, and is answered; of a topic to be
/// made every setting is told.
const TIMES_INPUT: usize = 4096;
const BESIDES_BYTES: usize = 256 << 10;
/// The same for a push of a client's metrics, which is decompressed.
const DECOMPRESSING_BYTES: usize = 24 << 20;

/// Carries a request out as far as that goes without a broker, twice: the second time what the first has left is there. Whether it could be read.
fn carry_out(request: &Request, world: &mut World) -> bool {
    // The walk by the schema takes what is read afterwards, and nothing else.
    let walked = schema::check(request);
    let first = handling::carry_out(request, world);
    if walked.is_err() {
        assert!(first.is_err(), "{walked:?}, and yet it was read");
    }
    assert_eq!(handling::carry_out(request, world), first);
    first.is_ok()
}

/// Takes a frame without its length; whether it could be read.
pub fn run(input: &[u8]) -> bool {
    if let Some(prefix) = input.first_chunk()
        && let Ok(length) = frame::frame_length(*prefix, limits::FRAME_BYTES)
    {
        assert!(length <= limits::FRAME_BYTES);
    }
    let frame = Bytes::copy_from_slice(input);
    let mut world = World::default();
    let (good, peak) = memory::peak(|| match frame::parse(frame) {
        Ok(Frame::Request(request)) => {
            let shown = request.client_id.to_string();
            assert!(shown.len() <= 4 * limits::CLIENT_ID_SHOWN_BYTES + 3);
            carry_out(&request, &mut world)
        }
        _ => false,
    });
    let besides = match input {
        [0, 72, ..] => DECOMPRESSING_BYTES,
        _ => BESIDES_BYTES,
    };
    let allowed = TIMES_INPUT * input.len() + besides;
    assert!(peak <= allowed, "{peak} bytes for {}", input.len());
    good
}
