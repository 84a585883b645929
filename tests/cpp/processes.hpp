// Child processes for tests: forked bodies, pipes for signals, waits with a time limit.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>

namespace processes {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// A pipe that carries single bytes between a test and its children.
class Signal final {
 public:
  Signal() {
    if (pipe(ends_) != 0) std::abort();
  }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  void give() {
    const char byte = 1;
    if (write(ends_[1], &byte, 1) != 1) std::abort();
  }
  bool take(double timeout_s = 20.0) {
    pollfd entry{ends_[0], POLLIN, 0};
    if (poll(&entry, 1, static_cast<int>(timeout_s * 1000.0)) != 1) return false;
    char byte;
    return read(ends_[0], &byte, 1) == 1;
  }

 private:
  int ends_[2];
};

// Runs body() in a child, which exits with the result.
template <class Body>
pid_t spawn(Body&& body) {
  const pid_t pid = fork();
  if (pid < 0) std::abort();
  if (pid == 0) _exit(body());
  return pid;
}

// The exit status of a child; 128 + signal if it was killed; -1 if it did not end in time and was killed for that.
inline int wait_for(pid_t pid, double timeout_s = 20.0) {
  const double end = now_s() + timeout_s;
  int status = 0;
  for (;;) {
    if (waitpid(pid, &status, WNOHANG) == pid)
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (now_s() > end) break;
    sleep_s(0.002);
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  return -1;
}

inline void kill_and_wait(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

// Stops a child and returns after the kernel has reported it as stopped.
inline void stop_and_wait(pid_t pid) {
  kill(pid, SIGSTOP);
  waitpid(pid, nullptr, WUNTRACED);
}

}  // namespace processes
