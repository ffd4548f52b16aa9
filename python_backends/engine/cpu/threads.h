// Threads that compute a step together, and wait between steps. No step waits for one that does not come: whoever is there does all.

#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace gapless {

constexpr int SPINS = 2000;  // looks at what others do, before a thread lets others have its processor

class Threads {
public:
    using Work = std::function<void(int)>;  // of a thread, by its number

    // `count`: with the one that calls `finish`.
    explicit Threads(int count) : m_count(count) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the process's own threads
        for (int thread = 1; thread < count; ++thread) {
            m_threads.emplace_back([this, thread] { serve(thread); });
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Threads() {
        m_ends = true;
        wake();
        for (auto& thread : m_threads) {
            thread.join();
        }
    }

    int count() const {
        return m_count;
    }

    // The other threads begin with `work`, which stays where it is until `finish`. It may be done twice by one of them.
    void begin(const Work& work) {
        m_work = &work;
        wake();
    }

    // Does it with the threads that have come before this one is done with it.
    void finish() {
        (*m_work.load())(0);
        m_work = nullptr;
        for (int looked = 0; m_inside > 0; ++looked) {
            looked < SPINS ? _mm_pause() : std::this_thread::yield();
        }
    }

private:
    void wake() {
        ++m_round;
        if (m_asleep > 0) {
            syscall(SYS_futex, &m_round, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
        }
    }

    void serve(int thread) {
        uint32_t seen = 0;
        while (true) {
            seen = next_round(seen);
            if (m_ends) {
                return;
            }
            ++m_inside;
            if (const auto* work = m_work.load()) {
                (*work)(thread);
            }
            --m_inside;
        }
    }

    uint32_t next_round(uint32_t seen) {
        for (int looked = 0; looked < SPINS; ++looked) {
            if (const uint32_t round = m_round; round != seen) {
                return round;
            }
            _mm_pause();
        }
        ++m_asleep;
        uint32_t round;
        while ((round = m_round) == seen) {
            syscall(SYS_futex, &m_round, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        }
        --m_asleep;
        return round;
    }

    int m_count;
    std::vector<std::thread> m_threads;
    std::atomic<const Work*> m_work{nullptr};
    alignas(64) std::atomic<uint32_t> m_round{0};
    alignas(64) std::atomic<int> m_inside{0};
    std::atomic<int> m_asleep{0};
    std::atomic<bool> m_ends{false};
};

}  // namespace gapless
