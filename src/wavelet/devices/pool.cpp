// The pool as torch's CPU allocator: large blocks from one arena, small ones from malloc, every byte counted.

#include "pool.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

static_assert(wavelet::kAlignment == c10::gAlignment, "torch's kernels rely on its alignment");

namespace {

// Stands at the end of a block from malloc. Blocks that torch took before the pool was there come back to it too
// (oneDNN frees through the allocator of the day): both are malloc's, but only ours are counted.
struct Note {
  std::size_t bytes;
  std::uintptr_t check;

  static std::uintptr_t check_for(const void* block, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(block) ^ bytes ^ static_cast<std::uintptr_t>(0x9e6c63d0876a9a47);
  }
};

// Four times the memory, as holes in the addresses cost nothing; less where the process's addresses are limited.
std::size_t span() {
  std::size_t bytes = 4 * static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min<std::size_t>(bytes, limit.rlim_cur / 2);
  }
  return bytes;
}

class Pool final : public c10::Allocator {
 public:
  // Never destroyed: tensors are freed after every destructor has run.
  static Pool& get() {
    static Pool* pool = new Pool;
    return *pool;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* block = nullptr;
    try {
      block = take(bytes);
    } catch (const c10::Error&) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      throw;
    }
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, &give, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  wavelet::Arena arena{span()};
  std::atomic<std::size_t> allocated{0};
  std::atomic<std::size_t> peak{0};

 private:
  void* take(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    void* block = bytes >= wavelet::kSmallest ? arena.allocate(bytes) : nullptr;
    if (block == nullptr) block = take_from_malloc(bytes);
    if (block == nullptr) return c10::alloc_cpu(bytes);  // raises what torch raises
    const std::size_t now = allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::size_t before = peak.load(std::memory_order_relaxed);
    while (before < now && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
    return block;
  }

  static void* take_from_malloc(std::size_t bytes) {
    void* block = nullptr;
    if (bytes > PTRDIFF_MAX - sizeof(Note)) return nullptr;
    if (posix_memalign(&block, wavelet::kAlignment, bytes + sizeof(Note)) != 0) return nullptr;
    const Note note{bytes, Note::check_for(block, bytes)};
    std::memcpy(place_of_note(block), &note, sizeof note);
    return block;
  }

  static void give(void* block) {
    if (block == nullptr) return;
    Pool& pool = get();
    c10::profiledCPUMemoryReporter().Delete(block);
    const bool ours = pool.arena.owns(block);
    const std::size_t bytes = ours ? pool.arena.release(block) : give_to_malloc(block);
    pool.allocated.fetch_sub(bytes, std::memory_order_relaxed);
  }

  // The bytes that were counted for the block.
  static std::size_t give_to_malloc(void* block) {
    Note note{0, 0};
    if (malloc_usable_size(block) >= sizeof(Note)) std::memcpy(&note, place_of_note(block), sizeof note);
    const bool counted = note.check == Note::check_for(block, note.bytes);
    // The next block at this address may be somebody else's. A memset before a free is optimized away.
    if (counted) explicit_bzero(place_of_note(block), sizeof note);
    std::free(block);
    return counted ? note.bytes : 0;
  }

  static char* place_of_note(void* block) {
    return static_cast<char*>(block) + malloc_usable_size(block) - sizeof(Note);
  }
};

}  // namespace

extern "C" {

// The torch that this was compiled for.
const char* wavelet_pool_torch() { return WAVELET_TORCH; }

// Returns whether torch uses the pool from now on.
bool wavelet_pool_install() {
  static const bool installed = [] {
    Pool& pool = Pool::get();
    if (!pool.arena) return false;
    c10::SetCPUAllocator(&pool);
    if (c10::GetCPUAllocator() != &pool) return false;  // somebody installed one of a higher priority
    pthread_atfork([] { Pool::get().arena.lock(); }, [] { Pool::get().arena.unlock(); },
                   [] { Pool::get().arena.unlock(); });
    return true;
  }();
  return installed;
}

// Bytes given out now, the most of them since the last reset, and the bytes of the arena.
void wavelet_pool_stats(std::size_t* numbers) {
  Pool& pool = Pool::get();
  numbers[0] = pool.allocated.load(std::memory_order_relaxed);
  numbers[1] = pool.peak.load(std::memory_order_relaxed);
  numbers[2] = pool.arena.reserved();
}

// Gives the pages of all free blocks to the system.
void wavelet_pool_give_back() { Pool::get().arena.give_back_all(); }

void wavelet_pool_reset_peak() {
  Pool& pool = Pool::get();
  pool.peak.store(pool.allocated.load(std::memory_order_relaxed), std::memory_order_relaxed);
}
}
