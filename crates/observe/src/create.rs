//! Creates the files: memory without a name, or a file in a folder.

use std::fs::{File, OpenOptions, rename};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::{Mode, SealFlags, fchmod, ftruncate};

use crate::error::Error;
use crate::layout::Layout;
use crate::memory::{create, map_writable, seals};
use crate::writer::{Service, Writer};

/// Who may open a file in a folder.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The file's owner; ours if none is given.
    pub owner: Option<u32>,
    /// The file's group; ours if none is given.
    pub group: Option<u32>,
    /// Permissions, such as 0o640. Nobody but the owner gets the right to write.
    pub mode: u32,
}

impl Writer {
    /// A file without a name, to be handed out over a socket. Sealed: nobody changes its size, and
    /// nobody but this writer writes, not even by opening `/proc/self/fd` anew.
    pub fn in_memfd(service: &Service<'_>) -> Result<Self, Error> {
        let layout = Layout::new(service.egresses, service.fields)?;
        let file = create("fenxi-service", layout.words)?;
        fchmod(&file, Mode::RUSR)?;
        let memory = map_writable(&file)?;
        // The mapping above stays writable; there will be no other.
        seals(&file, SealFlags::FUTURE_WRITE)?;
        let mut writer = Self::begin(memory, layout, service)?;
        writer.set_file(file);
        Ok(writer)
    }

    /// A file at `path`, which replaces one that is there. It appears under its name with its
    /// header and its rights, not before.
    pub fn in_file(service: &Service<'_>, path: &Path, access: Access) -> Result<Self, Error> {
        let layout = Layout::new(service.egresses, service.fields)?;
        let mut hidden = path.as_os_str().to_owned();
        hidden.push(".new");
        match std::fs::remove_file(&hidden) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        // Fails on a link, and on a file that somebody else puts there.
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&hidden)?;
        ftruncate(&file, layout.words as u64 * 8)?;
        let memory = map_writable(&file)?;
        let mut writer = Self::begin(memory, layout, service)?;
        // What is handed out must not be writable.
        writer.set_file(File::open(&hidden)?.into());
        fchown(&file, access.owner, access.group)?;
        fchmod(&file, Mode::from_raw_mode(access.mode & !0o022))?;
        rename(&hidden, path)?;
        Ok(writer)
    }
}

#[cfg(test)]
#[cfg(not(miri))]
pub(crate) mod tests;
