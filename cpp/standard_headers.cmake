# These headers are included by nearly every file of the core. Builds that only tests use parse the headers once, which
# saves a third of their time. Builds for users do not, so that a file that forgets an include does not compile there.
set(RELIVE_STANDARD_HEADERS <algorithm> <atomic> <cmath> <cstdint> <cstring> <functional> <limits> <memory> <mutex>
                            <optional> <string> <thread> <utility> <vector>)
