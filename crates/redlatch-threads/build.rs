//! Has the library built over the threads of `shuttle`.

fn main() {
    println!("cargo::rustc-cfg=redlatch_shuttle");
    println!("cargo::rerun-if-changed=build.rs");
}
