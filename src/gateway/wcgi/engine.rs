//! The engine all modules of a host share: how they are compiled, and the pool their instances come from.

use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Result, Strategy,
};

/// Elements of a table, which is what a C program has functions to point at.
pub const TABLE_ELEMENTS_MAX: usize = 100_000;

/// The stack of a module's own calls. C programs keep theirs in their memory besides.
const STACK_BYTES: usize = 512 << 10;

/// Dirty memory of a slot up to this is cleaned by writing zeros and the image's bytes over it instead of
/// being given back to the kernel: less than the page faults it saves the next run. An echo program dirties
/// three pages.
const RESIDENT_BYTES: usize = 64 << 10;

/// An engine with room for some instances at once, of `memory` bytes each at most.
///
/// # Errors
/// When the processor is not one that is compiled for, or the address space too small.
pub fn engine(instances: u32, memory: u64) -> Result<Engine> {
    Engine::new(&config(instances, memory))
}

fn config(instances: u32, memory: u64) -> Config {
    let mut config = Config::new();
    config.strategy(Strategy::Cranelift);
    // Looping modules are stopped where they look at a counter, at every loop and call. The alternative,
    // fuel, counts instructions and costs several times as much.
    config.epoch_interruption(true);
    config.max_wasm_stack(STACK_BYTES);
    // A fresh instance maps the module's initial memory copy-on-write.
    config.memory_init_cow(true);
    // For debuggers and profilers; traps are caught without.
    config.native_unwind_info(false);
    // What C and Rust compilers for WASI emit needs none of these, and each is more to get wrong.
    config.wasm_multi_memory(false);
    config.wasm_memory64(false);
    config.wasm_relaxed_simd(false);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(instances)
        .total_memories(instances)
        .total_tables(instances)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size(usize::try_from(memory).unwrap_or(usize::MAX))
        .table_elements(TABLE_ELEMENTS_MAX)
        .linear_memory_keep_resident(RESIDENT_BYTES)
        .table_keep_resident(RESIDENT_BYTES)
        // Tells which pages are dirty, since Linux 6.7.
        .pagemap_scan(Enabled::Auto);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}
