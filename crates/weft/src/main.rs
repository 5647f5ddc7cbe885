mod apply;
mod commands;
mod manifest;
mod mesh;
mod prom;
mod select;
mod traffic;
fn main() {}
