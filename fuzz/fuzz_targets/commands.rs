#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redlatch_engine::fuzzing::commands(bytes));
