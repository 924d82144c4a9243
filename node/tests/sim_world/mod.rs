//! The world around a simulated node: its clients, and what they know.

use std::net::SocketAddr;
use std::time::Duration;

use engine::rt;

pub mod check;
pub mod group;
pub mod known;
pub mod log;
pub mod producer;
pub mod reader;
pub mod rough;
pub mod wire;

use known::Outside;
use wire::Connection;

pub const ADDR: &str = "127.0.0.1:9092";

pub fn address() -> SocketAddr {
    ADDR.parse().expect("an address")
}

/// A number below `n`, of the world's own.
pub fn draw(n: u64) -> u64 {
    rt::random_u64() % n.max(1)
}

pub fn chance(one_in: u64) -> bool {
    draw(one_in) == 0
}

/// From microseconds to some milliseconds.
pub async fn pause() {
    rt::sleep(Duration::from_micros(draw(1 << draw(13)))).await;
}

/// A connection to whatever shard the network chooses. `None` while nobody listens.
pub async fn connect(outside: &Outside) -> Option<Connection> {
    let connection = Connection::open(address()).await;
    outside.count(|c| c.connections += u64::from(connection.is_some()));
    connection
}
