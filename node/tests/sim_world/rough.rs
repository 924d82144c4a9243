//! Clients that no node should have to put up with: frames that end early, bytes that are none, frames gone bad, answers that nobody takes.

use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use engine::rt;
use kafka_api::testing;

use super::known::{Id, Outside, Place, places};
use super::producer::{batch, request};
use super::reader::Fetch;
use super::wire::{Connection, Gone};
use super::{connect, draw, pause};

/// Its records must never be anywhere: no frame that held one was ever sent whole.
const POISON: u32 = 666;

pub async fn rough(outside: Rc<Outside>, rounds: u64) {
    let frames = testing::frames();
    for n in 0..rounds {
        if outside.stopping.get() {
            return;
        }
        if let Some(mut c) = connect(&outside).await {
            // That the connection ends under it is what it is there for.
            let _ = match draw(4) {
                0 => cut(&outside, &mut c, n).await,
                1 => noise(&outside, &mut c).await,
                2 => bad(&outside, &mut c, &frames).await,
                _ => slow(&outside, &mut c).await,
            };
            c.cut();
        }
        pause().await;
    }
}

fn somewhere(outside: &Outside) -> Option<Place> {
    let there: Vec<Place> = places()
        .filter(|p| outside.topics[p.0].there.get())
        .collect();
    (!there.is_empty()).then(|| there[draw(there.len() as u64) as usize])
}

/// A good frame whose end never comes.
async fn cut(outside: &Outside, c: &mut Connection, n: u64) -> Result<(), Gone> {
    let Some(place) = somewhere(outside) else {
        return Ok(());
    };
    let id = Id {
        producer: POISON,
        stream: 0,
        n,
    };
    let parts = [(place, batch(outside, &[id], None))];
    let version = 3 + draw(11) as i16;
    let frame = c.frame(version, &request(outside, version, -1, &parts));
    let part = frame.slice(..1 + draw(frame.len() as u64 - 1) as usize);
    c.send_bytes(part).await?;
    outside.count(|k| k.cut_in_frame += 1);
    pause().await;
    Ok(())
}

/// Bytes of nothing.
async fn noise(outside: &Outside, c: &mut Connection) -> Result<(), Gone> {
    let mut bytes = BytesMut::new();
    if draw(2) == 0 {
        // A length that could be one.
        bytes.put_i32(8 + draw(2_000) as i32);
    }
    for _ in 0..draw(300) {
        bytes.put_u64(rt::random_u64());
    }
    garbage(outside, c, bytes.freeze()).await
}

/// A request of some key and version, with some of its bytes changed.
async fn bad(outside: &Outside, c: &mut Connection, frames: &[Bytes]) -> Result<(), Gone> {
    let mut frame = BytesMut::from(&frames[draw(frames.len() as u64) as usize][..]);
    for _ in 0..draw(4) {
        let at = draw(frame.len() as u64) as usize;
        frame[at] = rt::random_u64() as u8;
    }
    let mut bytes = BytesMut::new();
    bytes.put_i32(frame.len() as i32);
    bytes.put_slice(&frame);
    garbage(outside, c, bytes.freeze()).await
}

async fn garbage(outside: &Outside, c: &mut Connection, bytes: Bytes) -> Result<(), Gone> {
    c.send_bytes(bytes).await?;
    outside.count(|k| k.garbage += 1);
    if c.until_closed(Duration::from_millis(20)).await {
        outside.count(|k| k.closed_on_garbage += 1);
    }
    Ok(())
}

/// Asks for much, and takes the answers late or never.
async fn slow(outside: &Outside, c: &mut Connection) -> Result<(), Gone> {
    let Some(place) = somewhere(outside) else {
        return Ok(());
    };
    let mut asked = Vec::new();
    for _ in 0..4 + draw(20) {
        let mut f = Fetch::drawn(place, 0);
        f.max_bytes = 1 << 20;
        f.max_wait_ms = 0;
        let request = f.request(outside);
        c.send(f.version, &request).await?;
        asked.push(f);
    }
    rt::sleep(Duration::from_millis(draw(400))).await;
    outside.count(|k| k.slow += 1);
    if draw(3) == 0 {
        return Ok(());
    }
    for f in asked {
        let response = c
            .answer::<kafka_protocol::messages::FetchRequest>(f.version)
            .await?;
        f.read(outside, response);
        if draw(4) == 0 {
            pause().await;
        }
    }
    Ok(())
}
