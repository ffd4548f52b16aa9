// The work of a step, in phases that follow each other, done by all threads together.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "multiplier.h"
#include "threads.h"

namespace gapless {

// An item of a phase begins when all items of the phase before have ended. Who is done with its own share of a phase takes some of the
// others': a thread that is interrupted is waited for only until its last items end, and one that never begins not at all.
class Phases {
public:
    // `work` of the items from the first to before the last one.
    using Work = std::function<void(Multiplier&, int, int)>;

    // A thread takes up to `taken` items at a time.
    void add(int items, int taken, Work work) {
        if (items > 0) {
            m_phases.emplace_back(items, taken, std::move(work));
        }
    }

    // Other threads begin. Nothing is added any more.
    void begin(Threads& threads) {
        const int count = threads.count();
        for (auto& phase : m_phases) {
            phase.share(count);
        }
        m_work = [this, count](int thread) { run(thread, count); };
        threads.begin(m_work);
    }

private:
    struct alignas(64) Share {
        std::atomic<int> next;
        int end;
    };

    struct Phase {
        Phase(int items, int taken, Work work) : items(items), taken(taken), work(std::move(work)), left(items) {}

        void share(int threads) {
            shares = std::vector<Share>(threads);
            for (int i = 0; i < threads; ++i) {
                shares[i].next = int64_t(items) * i / threads;
                shares[i].end = int64_t(items) * (i + 1) / threads;
            }
        }

        int items, taken;
        Work work;
        std::vector<Share> shares;
        alignas(64) std::atomic<int> left;
    };

    void run(int thread, int threads) {
        Multiplier multiplier;
        const auto control = _mm_getcsr();
        _mm_setcsr(control | 0x8040);  // numbers too small to matter are zero instead of slow, as the tiles have it
        for (auto& phase : m_phases) {
            for (int i = 0; i < threads; ++i) {
                auto& share = phase.shares[(thread + i) % threads];
                for (int first; (first = share.next.fetch_add(phase.taken)) < share.end;) {
                    const int last = std::min(first + phase.taken, share.end);
                    phase.work(multiplier, first, last);
                    phase.left.fetch_sub(last - first);
                }
            }
            for (int looked = 0; phase.left.load() > 0; ++looked) {
                looked < SPINS ? _mm_pause() : std::this_thread::yield();
            }
        }
        _mm_setcsr(control);
    }

    std::deque<Phase> m_phases;
    Threads::Work m_work;
};

}  // namespace gapless
