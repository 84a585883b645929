# What nearly every file of the core includes, parsed once for builds that only tests use: a third of their time. Builds
# for users go without, so that a file that forgets an include of its own does not compile there.
set(RELIVE_STANDARD_HEADERS <algorithm> <atomic> <cmath> <cstdint> <cstring> <functional> <limits> <memory> <mutex>
                            <optional> <string> <thread> <utility> <vector>)
