//! Compiles MLX's C interface, and makes the bindings to it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{BINDINGS, TARGET};

/// Our part of the library.
pub(crate) const SOURCES: [&str; 2] = [include_str!("compat.h"), include_str!("adopt.cpp")];

/// Makes `libmlxc.a` of what goes with an unpacked MLX.
pub(crate) fn compile(mlx_c: &Path, mlx: &Path, out: &Path) -> Result<()> {
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .opt_level(1)
        .host(TARGET)
        .target(TARGET)
        .warnings(false)
        .cargo_metadata(false)
        .include(mlx_c)
        .flag("-isystem")
        .flag(mlx.join("include"))
        .flag("-include")
        .flag(ours("compat.h"))
        .files(interface(mlx_c, "cpp")?)
        .file(ours("adopt.cpp"))
        .out_dir(out)
        .try_compile("mlxc")
        .context("a C++20 compiler is needed (apt-get install g++)")
}

/// Makes `libmlxc.so` of `libmlxc.a`, in a folder that will be called `home`, beside that of the wheel.
pub(crate) fn link(out: &Path, home: &Path) -> Result<()> {
    let archive = out.join("libmlxc.a");
    let status = Command::new("g++")
        .args(["-shared", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN/../wheel/mlx/lib"])
        .arg(format!("-Wl,-soname,{}", home.join("libmlxc.so").display()))
        .arg("-o")
        .arg(out.join("libmlxc.so"))
        .args([
            "-Wl,--whole-archive".as_ref(),
            archive.as_os_str(),
            "-Wl,--no-whole-archive".as_ref(),
        ])
        .arg("-L")
        .arg(out.join("../wheel/mlx/lib"))
        .arg("-lmlx")
        .status()
        .context("g++")?;
    if !status.success() {
        bail!("mlx-c could not be linked");
    }
    for item in fs::read_dir(out)? {
        let path = item?.path();
        if path.extension().is_some_and(|extension| extension == "a" || extension == "o") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Makes `bindings.rs` with the libclang of a folder. bindgen finds it by its environment.
pub(crate) fn bindings_with(libclang: &Path, mlx_c: &Path, out: &Path) -> Result<()> {
    let status = Command::new(env::current_exe()?)
        .arg(BINDINGS)
        .args([mlx_c, out])
        .env("LIBCLANG_PATH", libclang)
        .status()?;
    if !status.success() {
        bail!("the bindings could not be made");
    }
    Ok(())
}

/// Makes `bindings.rs`.
pub(crate) fn bindings(mlx_c: &Path, out: &Path) -> Result<()> {
    let mut builder = bindgen::builder()
        .rust_target("1.73.0".parse()?)
        .clang_args(["-nostdinc", "-include"])
        .clang_arg(ours("compat.h").display().to_string())
        .clang_arg(format!("-I{}", mlx_c.display()))
        .allowlist_item("(mlx|MLX|_mlx).*")
        .allowlist_type("b?float16_t");
    // PyPI's libclang brings no headers: the compiler's do.
    for folder in [compilers_headers()?.as_path(), Path::new("/usr/include")] {
        builder = builder.clang_arg(format!("-I{}", folder.display()));
    }
    builder = builder.clang_arg("-I/usr/include/x86_64-linux-gnu");
    for header in interface(mlx_c, "h")? {
        builder = builder.header(header.display().to_string());
    }
    let path = out.join("bindings.rs");
    builder.generate()?.write_to_file(&path).with_context(|| path.display().to_string())
}

fn ours(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Files of the C interface, in order.
fn interface(mlx_c: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let folder = mlx_c.join("mlx/c");
    let items = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let paths = items.map(|item| Ok(item?.path())).collect::<Result<Vec<_>>>()?;
    let is_one = |path: &PathBuf| path.extension().is_some_and(|e| e == extension);
    let mut paths: Vec<_> = paths.into_iter().filter(is_one).collect();
    paths.sort();
    Ok(paths)
}

fn compilers_headers() -> Result<PathBuf> {
    let output = Command::new("g++").arg("-print-file-name=include").output().context("g++")?;
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim_end()))
}
