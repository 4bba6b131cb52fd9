# One .deb and one .tar.gz of what is installed, for any x86-64 Linux with glibc 2.28 and nothing else. Made by
#   cmake --workflow --preset packages
# in the folder of the preset release, of its own programs: what was tested is what is packaged.

# What the preset builds.
add_custom_target(packaged DEPENDS ddprun ddp-rendezvous ddp-bench ddp ddprun_man_page ddp_rendezvous_man_page
                  ddp_bench_man_page ddprun_completions)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # nor does cpack then build tests and benchmarks, which are not in them

install(FILES CHANGELOG.md LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
# Each example is a project of its own. The CMakeLists.txt of their folder is only for this tree.
install(DIRECTORY examples slurm DESTINATION ${CMAKE_INSTALL_DATADIR}/ddprun
        REGEX "examples/CMakeLists\\.txt$" EXCLUDE)
install(DIRECTORY deploy/kubernetes DESTINATION ${CMAKE_INSTALL_DATADIR}/ddprun)
# Not enabled: what listens on a port does so when somebody has said so.
install(FILES deploy/systemd/ddp-rendezvous.service DESTINATION lib/systemd/system)

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_NAME ddprun)
set(CPACK_PACKAGE_VENDOR "the ddprun project")
set(CPACK_PACKAGE_CONTACT "the ddprun project <ddprun@localhost>")
set(CPACK_PACKAGE_FILE_NAME ddprun-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.28)")
# Of libddp; of --numa-binding; of jobs with a token.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libstdc++6 (>= 12), libhwloc15, libssl3")
# libddp.so is in a folder of the loader's.
file(WRITE ${PROJECT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/triggers)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
