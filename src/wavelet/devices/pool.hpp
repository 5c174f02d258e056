// The core of the pool, without torch: best fit with coalescing in one span of addresses, one heap for all threads.
//
// The span is reserved once and made usable from its low end upwards, so that every free block can merge with its
// neighbours and whether a pointer is ours takes two comparisons. Blocks are described outside of them: a free block's
// pages are never touched. What one thread frees is at once there for the others.
//
// Resident memory: best fit in one heap keeps holes few, so a free keeps its pages, which the next step writes again.
// Pages are given back where the heap stands at its recent peak and more than an eighth of that is still free and
// resident: what the peak does not need, the step does not need. 64 MiB a second at most, so that a wrong guess (a step
// longer than the memory of peaks) costs little.

#pragma once

#include "pool_block.hpp"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

namespace wavelet {

constexpr std::size_t kSmallest = 64 << 10;  // no smaller block is given out, so each granule has one start at most
constexpr std::size_t kGrowth = 64 << 20;
constexpr std::size_t kGiveBack = 16 << 20;
constexpr std::int64_t kMillisecondsBetweenGiveBacks = 250;
constexpr std::int64_t kMillisecondsOfPeak = 2000;

// Lives as long as the process: blocks may be freed after every destructor has run.
class Arena {
 public:
  // An arena without a span, where the system refuses it, has no memory to give.
  explicit Arena(std::size_t span) {
    span = span / kGrowth * kGrowth;
    void* base = mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return;
    void* starts = mmap(nullptr, span / kSmallest * sizeof(Block*), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (starts == MAP_FAILED) {
      munmap(base, span);
      return;
    }
    starts_ = static_cast<Block**>(starts);
    base_ = top_ = usable_ = static_cast<char*>(base);
    end_ = base_ + span;
  }

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  explicit operator bool() const noexcept { return base_ != nullptr; }

  bool owns(const void* pointer) const noexcept { return pointer >= base_ && pointer < end_; }

  // A block of at least kSmallest bytes, or nullptr.
  void* allocate(std::size_t bytes) noexcept {
    const std::size_t size = (std::max(bytes, kSmallest) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > static_cast<std::size_t>(end_ - base_)) return nullptr;
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = nullptr;
    try {
      block = find(size);
    } catch (const std::bad_alloc&) {
    }
    if (block == nullptr) return nullptr;
    block->requested = std::max<std::size_t>(bytes, 1);
    starts_[(block->start - base_) / kSmallest] = block;
    used_ += block->size;
    keep_resident_memory_small();
    return block->start;
  }

  // Takes back a block that `allocate` gave. Returns the bytes that were asked for.
  std::size_t release(void* pointer) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    Block* block = starts_[(static_cast<char*>(pointer) - base_) / kSmallest];
    const std::size_t bytes = block->requested;
    block->requested = 0;
    block->dirty = block->size;
    used_ -= block->size;
    dirty_ += block->size;
    if (Block* before = block->before; before != nullptr && before->requested == 0) {
      leave_free(before);
      merge(before, block);
      block = before;
    }
    if (Block* after = block->after; after != nullptr && after->requested == 0) {
      leave_free(after);
      merge(block, after);
    }
    enter_free(block);
    return bytes;
  }

  // Gives the pages of all free blocks to the system.
  void give_back_all() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    for (Block* block : free_) give_back(block, block->size);
    lower_top();
  }

  // The bytes made usable, in use or not.
  std::size_t reserved() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    return usable_ - base_;
  }

  // For a fork: the child must not inherit a mutex that a thread holds which it has not.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // A block of exactly `size`, taken from the free ones or from the top.
  Block* find(std::size_t size) {
    Block* rest = new_block();  // first, as it may throw
    Block* block = best(size);
    if (block == nullptr) {
      block = extend(size, rest);
      if (block != rest) drop(rest);
      return block;
    }
    leave_free(block);
    dirty_ -= std::min(block->dirty, size);
    if (block->size == size) {
      drop(rest);
      return block;
    }
    rest->start = block->start + size;
    rest->size = block->size - size;
    rest->dirty = block->dirty > size ? block->dirty - size : 0;
    block->size = size;
    link(rest, block, block->after);
    enter_free(rest);
    return block;
  }

  // The lowest of the free blocks that fit well: the smallest that fits, or up to a quarter larger.
  Block* best(std::size_t size) const noexcept {
    auto found = free_.lower_bound(size);
    Block* lowest = found != free_.end() ? *found : nullptr;
    const std::size_t limit = lowest != nullptr ? lowest->size + lowest->size / 4 : 0;
    for (; found != free_.end() && (*found)->size <= limit; ++found) {
      if ((*found)->start < lowest->start) lowest = *found;
    }
    return lowest;
  }

  // A block of `size` at the top: the last one, where it is free, made longer; else `fresh`.
  Block* extend(std::size_t size, Block* fresh) {
    const bool longer = last_ != nullptr && last_->requested == 0;
    const std::size_t more = longer ? size - last_->size : size;
    if (more > static_cast<std::size_t>(end_ - top_)) return nullptr;
    if (top_ + more > usable_) {
      const std::size_t missing = top_ + more - usable_;
      const std::size_t growth = std::min<std::size_t>(end_ - usable_, (missing + kGrowth - 1) / kGrowth * kGrowth);
      if (mprotect(usable_, growth, PROT_READ | PROT_WRITE) != 0) return nullptr;
      usable_ += growth;
    }
    Block* block = longer ? last_ : fresh;
    if (longer) {
      leave_free(block);
      dirty_ -= block->dirty;
    } else {
      block->start = top_;
      link(block, last_, nullptr);
    }
    block->size = size;
    top_ += more;
    return block;
  }

  // `one` becomes both; neither is among the free.
  void merge(Block* one, Block* other) noexcept {
    const std::size_t both = other->dirty > 0 ? one->size + other->dirty : one->dirty;
    dirty_ += both - one->dirty - other->dirty;
    one->dirty = both;
    one->size += other->size;
    one->after = other->after;
    (other->after != nullptr ? other->after->before : last_) = one;
    drop(other);
  }

  void link(Block* block, Block* before, Block* after) noexcept {
    block->before = before;
    block->after = after;
    if (before != nullptr) before->after = block;
    (after != nullptr ? after->before : last_) = block;
  }

  void enter_free(Block* block) noexcept { free_.insert(std::move(block->place)); }
  void leave_free(Block* block) noexcept { block->place = free_.extract(block); }

  Block* new_block() {
    if (spare_ == nullptr) {
      FreeBlocks alone{nullptr};
      FreeBlocks::node_type place = alone.extract(alone.begin());
      spare_ = new Block;
      place.value() = spare_;
      spare_->place = std::move(place);
    }
    Block* block = spare_;
    spare_ = block->after;
    block->after = nullptr;
    return block;
  }

  void drop(Block* block) noexcept {
    block->requested = block->dirty = 0;
    block->after = spare_;
    spare_ = block;
  }

  void keep_resident_memory_small() noexcept {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    const std::int64_t now = time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
    if (now - peak_since_ >= kMillisecondsOfPeak) {
      peak_before_ = peak_;
      peak_ = 0;
      peak_since_ = now;
    }
    peak_ = std::max(peak_, used_);
    const std::size_t peak = std::max(peak_, peak_before_);
    const std::size_t allowed = peak + peak / 16;
    if (used_ + dirty_ <= allowed || used_ < peak / 4 * 3) return;
    if (now - gave_back_ < kMillisecondsBetweenGiveBacks) return;
    gave_back_ = now;
    give_back_some(std::min(kGiveBack, used_ + dirty_ - allowed));
    lower_top();
  }

  // Gives back about `bytes` from the end of the highest free block, or else of the largest that has them.
  void give_back_some(std::size_t bytes) noexcept {
    if (last_->requested == 0 && give_back(last_, bytes)) return;
    for (auto found = free_.rbegin(); found != free_.rend(); ++found) {
      if (give_back(*found, bytes)) return;
    }
  }

  // Gives back the last `bytes` of a free block that may be resident. Returns whether there were any.
  bool give_back(Block* block, std::size_t bytes) noexcept {
    const std::size_t kept = block->dirty > bytes ? block->dirty - bytes : 0;
    const auto start = reinterpret_cast<std::uintptr_t>(block->start);
    const auto first = (start + kept + page_ - 1) / page_ * page_;
    const auto last = (start + block->dirty) / page_ * page_;
    if (first >= last) return false;
    madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    dirty_ -= block->dirty - kept;
    block->dirty = kept;
    return true;
  }

  // What is free and not resident at the top is no block, so that blocks lower down are preferred.
  void lower_top() noexcept {
    Block* block = last_;
    if (block == nullptr || block->requested != 0 || block->dirty == block->size) return;
    leave_free(block);
    block->size = (block->dirty + kAlignment - 1) / kAlignment * kAlignment;
    top_ = block->start + block->size;
    if (block->size != 0) return enter_free(block);
    last_ = block->before;
    if (last_ != nullptr) last_->after = nullptr;
    drop(block);
  }

  const std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::mutex mutex_;
  char* base_ = nullptr;
  char* top_ = nullptr;  // blocks lie below
  char* usable_ = nullptr;
  char* end_ = nullptr;
  Block** starts_ = nullptr;  // the block in use that starts in each granule of kSmallest bytes
  FreeBlocks free_;
  Block* last_ = nullptr;
  Block* spare_ = nullptr;  // descriptions out of use
  std::size_t used_ = 0;
  std::size_t dirty_ = 0;  // of all free blocks
  std::size_t peak_ = 0;
  std::size_t peak_before_ = 0;
  std::int64_t peak_since_ = 0;
  std::int64_t gave_back_ = 0;
};

}  // namespace wavelet
