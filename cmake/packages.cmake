# A .deb, a .tar.gz and, if rpmbuild is installed, an .rpm of what is installed, for any x86-64 Linux with glibc 2.28
# and nothing else. Made by
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
find_program(DDP_RPMBUILD rpmbuild)
mark_as_advanced(DDP_RPMBUILD)
if(DDP_RPMBUILD)
  list(APPEND CPACK_GENERATOR RPM)
endif()
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

set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "Apache-2.0")
set(CPACK_RPM_PACKAGE_SUMMARY ${PROJECT_DESCRIPTION})
# By itself rpm would require the C++ library that only libddp needs.
set(CPACK_RPM_PACKAGE_AUTOREQ OFF)
set(CPACK_RPM_PACKAGE_REQUIRES "glibc >= 2.28")
file(WRITE ${PROJECT_BINARY_DIR}/ldconfig.sh "/sbin/ldconfig\n")
set(CPACK_RPM_POST_INSTALL_SCRIPT_FILE ${PROJECT_BINARY_DIR}/ldconfig.sh)
set(CPACK_RPM_POST_UNINSTALL_SCRIPT_FILE ${PROJECT_BINARY_DIR}/ldconfig.sh)
# The same files as in the .deb: rpmbuild compresses no man pages and adds no links. Level 6 takes half the time of the
# default 9. CPack does not write Suggests with Debian's rpmbuild.
string(JOIN "\n" CPACK_RPM_SPEC_MORE_DEFINE
       "%define __os_install_post %{nil}" "%define _build_id_links none" "%define _binary_payload w6.gzdio"
       "Suggests: libstdc++ >= 12, hwloc-libs, openssl-libs")
# Folders that other packages own.
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION
    /usr/lib/cmake /usr/lib/systemd /usr/lib/systemd/system /usr/share/bash-completion
    /usr/share/bash-completion/completions /usr/share/fish /usr/share/fish/vendor_completions.d /usr/share/man
    /usr/share/man/man1 /usr/share/pkgconfig /usr/share/zsh /usr/share/zsh/site-functions)
include(CPack)
