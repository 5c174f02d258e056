// A block of the pool's arena, and the order of the free ones: by size, then by address.

#pragma once

#include <cstddef>
#include <set>

namespace wavelet {

constexpr std::size_t kAlignment = 64;

struct Block;

struct BySizeThenAddress {
  using is_transparent = void;
  bool operator()(const Block* one, const Block* other) const;
  bool operator()(const Block* one, std::size_t size) const;
};

using FreeBlocks = std::set<Block*, BySizeThenAddress>;

struct Block {
  char* start = nullptr;
  std::size_t size = 0;
  std::size_t requested = 0;  // 0: free
  std::size_t dirty = 0;      // of a free block: no page from this offset on is resident
  Block* before = nullptr;
  Block* after = nullptr;
  FreeBlocks::node_type place;  // of a block in use: its place among the free, so that to free needs no memory
};

inline bool BySizeThenAddress::operator()(const Block* one, const Block* other) const {
  return one->size != other->size ? one->size < other->size : one->start < other->start;
}

inline bool BySizeThenAddress::operator()(const Block* one, std::size_t size) const { return one->size < size; }

}  // namespace wavelet
