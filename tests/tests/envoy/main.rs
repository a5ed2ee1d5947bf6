//! Everything through a real Envoy.

mod aborts;
mod balance;
mod bench;
mod changes;
mod chaos;
mod crashes;
mod destination;
mod evil;
mod failing;
mod gate;
mod gauges;
mod hostile;
mod launcher;
mod mutations;
mod prefix;
mod reports;
mod scope;
mod shapes;
mod starved;
mod support;
mod suspension;
mod traffic;
mod up;
mod upgrades;
mod upstream;
mod wire;
