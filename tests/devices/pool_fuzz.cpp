// Threads take blocks from one arena, write to them, and free those of others; run under sanitizers by test_pool.py.

#include "pool.hpp"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4;
constexpr int kSteps = 3000;
constexpr std::size_t kMostHeld = 64;

struct Held {
  unsigned char* start;
  std::size_t bytes;
  unsigned char mark;
};

std::mutex mutex;
std::deque<Held> held;  // by all threads

void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

template <typename Visit>
void visit(const Held& block, Visit visit_byte) {
  for (std::size_t at = 0; at < block.bytes; at += 509) visit_byte(block.start[at]);
  visit_byte(block.start[block.bytes - 1]);
}

void take(wavelet::Arena& arena, std::size_t bytes, unsigned char mark) {
  const Held block{static_cast<unsigned char*>(arena.allocate(bytes)), bytes, mark};
  if (block.start == nullptr) fail("no memory");
  if (reinterpret_cast<std::uintptr_t>(block.start) % wavelet::kAlignment != 0) fail("not aligned");
  if (!arena.owns(block.start) || !arena.owns(block.start + bytes - 1)) fail("not owned");
  visit(block, [&](unsigned char& byte) { byte = mark; });
  std::lock_guard<std::mutex> guard(mutex);
  held.push_back(block);
}

void give(wavelet::Arena& arena, std::mt19937& random) {
  Held block;
  {
    std::lock_guard<std::mutex> guard(mutex);
    if (held.empty()) return;
    std::swap(held[random() % held.size()], held.back());
    block = held.back();
    held.pop_back();
  }
  visit(block, [&](unsigned char& byte) {
    if (byte != block.mark) fail("overwritten");
  });
  if (arena.release(block.start) != block.bytes) fail("wrong size");
}

std::size_t size(std::mt19937& random) {
  const std::size_t most = wavelet::kSmallest << random() % 7;
  return random() % 3 != 0 ? most : wavelet::kSmallest + random() % most;
}

void work(wavelet::Arena& arena, int seed) {
  std::mt19937 random(seed);
  for (int step = 0; step < kSteps; ++step) {
    std::size_t count;
    {
      std::lock_guard<std::mutex> guard(mutex);
      count = held.size();
    }
    if (random() % kMostHeld >= count) {
      take(arena, size(random), static_cast<unsigned char>(random()));
    } else {
      give(arena, random);
    }
    if (random() % 200 == 0) arena.give_back_all();
  }
}

}  // namespace

int main() {
  static wavelet::Arena& arena = *new wavelet::Arena(std::size_t{4} << 30);
  if (!arena) fail("no span");
  if (arena.allocate(std::size_t{5} << 30) != nullptr) fail("more than the span");
  std::size_t reserved = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, std::ref(arena), thread);
    for (std::thread& thread : threads) thread.join();
    std::mt19937 random(0);
    while (!held.empty()) give(arena, random);
    // All is one free block again: what was reserved fits into it.
    if (round > 0 && arena.reserved() > 2 * reserved) fail("it grows from round to round");
    if (round == 0) reserved = arena.reserved();
    void* all = arena.allocate(arena.reserved());
    if (all == nullptr || arena.release(all) != arena.reserved()) fail("free blocks have not merged");
  }
}
